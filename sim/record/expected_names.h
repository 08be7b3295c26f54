// The names of expected.safetensors (design.md section 8) of what a golden run observed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::sim {

// None, one or two names ("loss" and "step1.loss"). `steps`: of the run; parameters count only
// after the last one. Step 0 is scoring.
std::vector<std::string> expected_names_of(const std::string& observed, int64_t step,
                                           int64_t steps);

}  // namespace shardproof::sim
