// What a low precision leaves in a tensor as a whole, where no single element says it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>

#include "observe/probe.h"
#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/tensor_diff.h"

namespace shardproof::sim {

// Why float32 values were not computed in float32: all of them, `fewest` different ones or more,
// have no more significant bits than `precision` (bfloat16 or float16) has. For quantities that are
// due in the wider type (model/precision.h); one value has so few by chance once in 2^13 times.
// "" when they are in order, or fewer.
std::string rounded_through(const at::Tensor& values, const std::string& precision,
                            size_t fewest = 8);

// The tensor as a whole, below float64: <actual, golden> / <golden, golden> is a mean over all
// elements, in which roundings cancel. It has to be as near to 1 as kFactorScatters times the
// golden's members are. It is asked before the first optimizer step alone: AdamW turns the sign of
// a small gradient into an error of a parameter that all tokens share. Tensors of fewer than
// kFewestOfFactor elements are too small to say.
//
// Correct runs use up to 3.7 (77,000 tensors of 150 random cases): a factor that all elements of a
// few sequences share is one draw for each of them. Of a piece that holds the part q of the
// golden's square, members are sqrt(1 / q) further off.
inline constexpr double kFactorScatters = 10;
inline constexpr int64_t kFewestOfFactor = 64;
struct FactorCheck {
  double used = 0;           // of what is allowed; 0 where nothing can be said
  std::string problem = {};  // "" or a sentence
};
FactorCheck check_factor(const DiffTask& task, const std::string& precision);

// Whether a reduced gradient is the sum of more than one addend that is not zero: of two
// microbatches, or of two ranks that hold different tokens. Then float32 sums of narrow values are
// no narrow values any more, and all of them being so tells that a sum was rounded.
class GradientAddends {
 public:
  explicit GradientAddends(const GoldenRecord& golden) : golden_(golden) {}
  // Every observation, in the order made.
  void see(const Observation& observation);
  // False also where the golden does not tell, and for weights other than the head and those that
  // write to the residual stream, the only ones that get a gradient from every token: a sample that
  // repeats one token has none of queries and keys, an activation or a softmax may saturate, and a
  // row that is looked up has one addend.
  bool are_several(const GoldenTensor& gradient) const;

 private:
  const GoldenRecord& golden_;
  int64_t step_ = -1;
  int64_t microbatch_ = 0;
  std::set<int64_t> tokens_;  // of the first microbatch of `step_`
};
inline constexpr size_t kFewestOfGradient = 64;

}  // namespace shardproof::sim
