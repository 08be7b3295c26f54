// What a rank notices about a failing tensor while it has the whole golden at hand.
#pragma once

#include <string>
#include <vector>

#include "sim/compare/tensor_diff.h"

namespace shardproof::sim {

// Sentences: "equals the golden of step 1: it was not updated", "equals the golden's <other
// tensor>", "every value is exactly a float32". Looks only at golden tensors of the same shape.
std::vector<std::string> hints_for(const DiffTask& task, const GoldenRecord& golden,
                                   const std::string& precision);

}  // namespace shardproof::sim
