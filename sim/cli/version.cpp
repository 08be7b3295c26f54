#include "sim/cli/version.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

namespace shardproof::sim::cli {

std::string version_text() { return fmt::format("shardproof 0.1.0 (LibTorch {})", TORCH_VERSION); }

}  // namespace shardproof::sim::cli
