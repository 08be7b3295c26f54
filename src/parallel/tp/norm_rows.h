// One row of an addition and its RMSNorm, worked on in registers. bfloat16 is given as its bits.
// No tensors here: add_rms_norm.cpp is where these are used.
#pragma once

#include <cstdint>

namespace shardproof {

struct NormRows {
  // sum[i] = addend[i] + residual[i], rounded once; the sum of the squares of what was written.
  // `sum` may be the addend or the residual, and overlaps neither otherwise.
  float (*add_float)(const float* addend, const float* residual, float* sum, int64_t width);
  float (*add_bfloat16)(const uint16_t* addend, const uint16_t* residual, uint16_t* sum,
                        int64_t width);
  // out[i] = x[i] * factor * weight[i], rounded once.
  void (*scale_float)(const float* x, const float* weight, float factor, float* out, int64_t width);
  void (*scale_bfloat16)(const uint16_t* x, const uint16_t* weight, float factor, uint16_t* out,
                         int64_t width);
};

// The widest that this processor has.
NormRows norm_rows();

// Both written once, in norm_row_loops.h, and compiled for each.
NormRows norm_rows_of_any_processor();
NormRows norm_rows_of_avx2();

}  // namespace shardproof
