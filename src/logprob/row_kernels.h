// Kernels for one row of logits in main memory that work in registers: one read gives the largest
// logit and the sum of exponentials; one read and one write give the gradient. Tensor operations
// need five passes, each of which costs more than its arithmetic.
//
// exp is within 2 units in the last place of float32 for the arguments of a softmax (0 and below).
// Below -87 it is 0; a NaN stays NaN. bfloat16 is passed as bits. `scale` is 1 / temperature; it
// multiplies differences, so that logits far from 0 lose no digits. There are no tensors here:
// logit_rows.h says where these kernels are used.
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
  float addend = -0.0f;  // adding it changes no bit
};

struct RowKernels {
  RowSum (*sum_float)(const float* logits, int64_t columns, float scale);
  RowSum (*sum_bfloat16)(const uint16_t* logits, int64_t columns, float scale);
  // The sum of logits[i] - base; -infinity where a logit is.
  float (*total_float)(const float* logits, int64_t columns, float base);
  float (*total_bfloat16)(const uint16_t* logits, int64_t columns, float base);
  // Computes out[i] from logits[i] and rounds once. `out` must not overlap the logits.
  void (*exp_float)(const float* logits, int64_t columns, const ExpTerms& terms, float* out);
  void (*exp_bfloat16)(const uint16_t* logits, int64_t columns, const ExpTerms& terms,
                       uint16_t* out);
  void (*exp_bfloat16_to_float)(const uint16_t* logits, int64_t columns, const ExpTerms& terms,
                                float* out);
};

// The widest kernels that this processor can run.
RowKernels row_kernels();

// These are instances of row_loops.h.
RowKernels row_kernels_of_any_processor();
RowKernels row_kernels_of_avx2();    // needs FMA too
RowKernels row_kernels_of_avx512();  // has_avx512()

}  // namespace shardproof
