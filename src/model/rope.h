// Rotary position embeddings (Su et al., "RoFormer", arXiv:2104.09864), in Hugging Face's pairing:
// element i turns with element i + head_dim/2.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/config.h"

namespace shardproof {

// [rotary_dim / 2] float64 on CPU, after the config's scaling (default, linear, llama3, yarn).
// `sliding` selects the layers with a sliding window, which have their own base in some families.
at::Tensor inverse_frequencies(const ModelConfig& config, bool sliding = false);

// positions [b, s] int64, frequencies [D/2] -> [2, b, s, 1, D/2]: cosines, then sines, times
// `factor`, in the dtype of the frequencies.
at::Tensor rotary_table(const at::Tensor& positions, const at::Tensor& frequencies,
                        double factor = 1.0);

// x [b, s, H, D], rotated by the table of its tokens in the table's dtype, then cast to x's.
// `interleaved`: neighbors of x turn together; the result has their first elements, then the
// second.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& table, bool interleaved = false);

}  // namespace shardproof
