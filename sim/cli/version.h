// The version of this build.
#pragma once

#include <string>

namespace shardproof::sim::cli {

std::string version_text();  // "shardproof 1.2.3 (LibTorch 2.11.0)"

}  // namespace shardproof::sim::cli
