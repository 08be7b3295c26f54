// One row of an addition and its RMSNorm, computed in registers. A bfloat16 is given as its bits.
// add_rms_norm.cpp calls these for the rows of tensors.
#pragma once

#include <cstdint>

namespace shardproof {

struct NormRows {
  // Writes sum[i] = addend[i] + residual[i], rounded once; returns the sum of the squares of the
  // rounded values. `sum` may be the addend or the residual, and overlaps neither otherwise.
  float (*add_float)(const float* addend, const float* residual, float* sum, int64_t width);
  float (*add_bfloat16)(const uint16_t* addend, const uint16_t* residual, uint16_t* sum,
                        int64_t width);
  // Writes out[i] = x[i] * factor * weight[i], rounded once.
  void (*scale_float)(const float* x, const float* weight, float factor, float* out, int64_t width);
  void (*scale_bfloat16)(const uint16_t* x, const uint16_t* weight, float factor, uint16_t* out,
                         int64_t width);
};

// The loops for the widest vectors that this processor has.
NormRows norm_rows();

// norm_row_loops.h, compiled for each instruction set.
NormRows norm_rows_of_any_processor();
NormRows norm_rows_of_avx2();

}  // namespace shardproof
