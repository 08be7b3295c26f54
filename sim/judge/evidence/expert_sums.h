// Which results of experts a wrong sum of experts adds up.
#pragma once

#include <optional>
#include <string>

#include "sim/judge/diff/evidence.h"
#include "sim/judge/evidence/values.h"

namespace shardproof::sim::judge {

// The golden tensor of the same forward whose name begins and ends so; null when there is none.
const GoldenTensor* beside(const GoldenRecord& golden, const GoldenTensor& right,
                           const std::string& begin, const std::string& end);

// Tries the sums of the golden's results of experts (golden/written_out.cpp, "<name>.each") that a
// token could have in place of its own: some of its routes alone, all without their weights, other
// experts' results for it, and other tokens'. Nothing unless each wrong token's sum is found, to
// the rounding.
std::optional<Evidence> look_at_expert_sums(const DiffTask& task, const Values& now,
                                            const GoldenRecord& golden);
// Whether the biases of the experts' second products are in the sum with another factor, or without
// the weights of the routes.
std::optional<Evidence> look_at_expert_biases(const DiffTask& task, const Values& now,
                                              const GoldenRecord& golden);

}  // namespace shardproof::sim::judge
