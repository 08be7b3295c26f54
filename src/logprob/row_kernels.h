// One row of logits in main memory, worked on in registers: the largest and the sum of exponentials
// in one reading, the gradient in one reading and one writing. What tensor operations do in five
// passes, each of which costs more than its arithmetic.
//
// exp is within 2 units in the last place of float32 for what a softmax gives it (0 and below);
// below -87 it is 0. A NaN stays one. bfloat16 is given as its bits. `scale` is 1 / temperature: it
// multiplies differences, so that logits far from 0 lose nothing to it. No tensors here:
// logit_rows.h says where these are used.
#pragma once

#include <cstdint>

namespace shardproof {

// -infinity and 0 where there is no column, or only -infinity.
struct RowSum {
  float max;
  float sum;  // of exp((logit - max) * scale)
};

// factor * exp((logit - max) * scale) + addend
struct ExpTerms {
  float max = 0;
  float scale = 1;
  float factor = 1;
  float addend = -0.0f;  // adds nothing, to the bit
};

struct RowKernels {
  RowSum (*sum_float)(const float* logits, int64_t columns, float scale);
  RowSum (*sum_bfloat16)(const uint16_t* logits, int64_t columns, float scale);
  // The sum of logits[i] - base. -infinity where a logit is.
  float (*total_float)(const float* logits, int64_t columns, float base);
  float (*total_bfloat16)(const uint16_t* logits, int64_t columns, float base);
  // out[i] from logits[i], rounded once; `out` does not overlap the logits.
  void (*exp_float)(const float* logits, int64_t columns, const ExpTerms& terms, float* out);
  void (*exp_bfloat16)(const uint16_t* logits, int64_t columns, const ExpTerms& terms,
                       uint16_t* out);
  void (*exp_bfloat16_to_float)(const uint16_t* logits, int64_t columns, const ExpTerms& terms,
                                float* out);
};

// The widest that this processor has.
RowKernels row_kernels();

// Both written once, in row_loops.h, and compiled for each.
RowKernels row_kernels_of_any_processor();
RowKernels row_kernels_of_avx2();  // and FMA

}  // namespace shardproof
