// Which settings a key needs in order to have an effect: a rotation of keys and values has none on
// one cp rank. A value that has no effect in a case was not tested by it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/case/option.h"
#include "sim/uses/explore/scenario_text.h"

namespace shardproof::sim::explore {

// The ways in which a key can have an effect; none: it always has one. They are those of its row; a
// key of models whose row has none needs one of their workloads.
const std::vector<Way>& ways_of(const std::string& path);

// `record`: the one that has the attribute; null for other keys.
bool in_effect(const std::string& path, const CaseSettings& settings,
               const nlohmann::json& record = nullptr);

// Sizes at which the code takes another way, and which keys the same code reads.

// A block, a tile or a bucket ends at this size.
struct Edge {
  const char* path;  // of the key
  int64_t size;
  const char* code;  // one of those that affects_code() knows; "": of a registered workload
  const char* reason;
};

const std::vector<Edge>& edges();

// Whether a value of this key changes what this code does.
bool affects_code(const std::string& path, const std::string& code);

}  // namespace shardproof::sim::explore
