#include "sim/cli/version.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

namespace shardproof::sim::cli {

std::string version_text() {
  return fmt::format("shardproof {} (LibTorch {})", SHARDPROOF_VERSION, TORCH_VERSION);
}

}  // namespace shardproof::sim::cli
