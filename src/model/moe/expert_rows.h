// The rows that experts compute: one for each kept route, sorted by (expert, token).
//
//   ids       [T, K] int64    the chosen experts of each token; -1 has no row
//   weight    [N, out, in]    of all N experts
//
// An expert without rows computes none, but takes part in every product, so that its gradient
// exists and is 0. No communication. Sources: NVIDIA/Megatron-LM
// megatron/core/transformer/moe/moe_utils.py, permute and unpermute; huggingface/transformers 5.23,
// MixtralExperts. Golden: golden/dense_experts.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardproof {

struct ExpertRows {
  at::Tensor routes;            // [n] int64: t * K + k of each row; -1 for a row that only pads
  std::vector<int64_t> counts;  // rows of each expert; their sum is n
  int64_t tokens = 0, num_chosen = 0;  // T and K
};

// `kept` [T, K] bool, from routes_within_capacity; undefined: all are kept.
ExpertRows rows_by_expert(const at::Tensor& ids, int64_t num_experts, const at::Tensor& kept = {});

// The same with further rows behind those of each expert, so that it has a multiple of `multiple`,
// as kernels of fixed blocks need them. A row that only pads is 0, and what comes of it is not
// used.
ExpertRows padded_rows(const ExpertRows& rows, int64_t multiple);

// x [T, E] -> [n, E].
at::Tensor gather_rows(const at::Tensor& x, const ExpertRows& rows);

// x [n, in], weight [N, out, in], bias [N, out] or undefined -> [n, out]: each row with the weight
// of its expert.
at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const ExpertRows& rows);

// outputs [n, E], weights [T, K] -> [T, E]: the weighted sum of each token's rows, added in the
// order of its ids. The weights are cast to the dtype of the outputs; but float16 outputs are cast
// to that of the weights, whose gradients are sums over E that may not fit float16.
at::Tensor combine_rows(const at::Tensor& outputs, const at::Tensor& weights,
                        const ExpertRows& rows);

}  // namespace shardproof
