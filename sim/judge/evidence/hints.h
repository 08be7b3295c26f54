// What a rank notices about a failing tensor while it has the whole golden at hand.
#pragma once

#include <string>
#include <vector>

#include "sim/judge/diff/tensor_diff.h"

namespace shardproof::sim {

// Sentences: "equals the golden of step 1: it was not updated", "equals the golden's <other
// tensor>", "every value is exactly a float32". Looks only at golden tensors of the same shape.
std::vector<std::string> hints_for(const DiffTask& task, const GoldenRecord& golden,
                                   const std::string& precision);

// Why float32 values were not computed in float32: all of them, eight different ones or more, are
// exactly what `precision` (bfloat16 or float16) can hold. For quantities that are due in the wider
// type (model/precision.h); by chance it happens once in 2^104 times. "" when they are in order.
std::string rounded_through(const at::Tensor& values, const std::string& precision);

}  // namespace shardproof::sim
