// Whether a gradient is a sum, by the tokens that its ranks and microbatches saw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

#include "observe/probe.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/golden_record.h"

namespace shardproof::sim::judge {

// Whether a reduced gradient is the sum of more than one nonzero addend: of two microbatches, or of
// two ranks with different tokens. A float32 sum of narrow values is no longer narrow, so narrow
// sums prove that a sum was rounded.
class GradientAddends {
 public:
  GradientAddends(const CaseSpec& spec, const GoldenRecord& golden)
      : spec_(spec), golden_(golden) {}
  // Takes every observation, in the order made.
  void see(const Observation& observation);
  // True only for gradients of the head and of the weights that write to the residual stream, which
  // get an addend from every token, and only when the golden shows that they do. For other weights
  // addends may be zero: a sample that repeats one token gives none to queries and keys, an
  // activation or a softmax may saturate, and a row of the embedding has one addend. False for a
  // head that defers its products, whose sum becomes one gradient of the weight's dtype.
  bool are_several(const GoldenTensor& gradient) const;

 private:
  const CaseSpec& spec_;
  const GoldenRecord& golden_;
  int64_t step_ = -1;
  int64_t microbatch_ = 0;
  std::set<int64_t> tokens_;  // of the first microbatch of `step_`
};
inline constexpr size_t kFewestOfGradient = 64;

}  // namespace shardproof::sim::judge
