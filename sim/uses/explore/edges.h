// Sizes at which the code takes another way, and which keys the same code reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::sim::explore {

// A block, a tile or a bucket ends at this size.
struct Edge {
  const char* path;  // of the key
  int64_t size;
  const char* code;  // one of those that is_read_by() knows; "": of a registered workload
  const char* reason;
};

const std::vector<Edge>& edges();

// Whether a value of this key changes what this code does.
bool is_read_by(const std::string& code, const std::string& path);

}  // namespace shardproof::sim::explore
