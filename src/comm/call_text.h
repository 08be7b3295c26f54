// Names of groups, as calls show them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof {

// "tp[2,3]"; a long regular list as "world[0,1..511]".
std::string group_name(const std::string& axis, const std::vector<int64_t>& ranks);

}  // namespace shardproof
