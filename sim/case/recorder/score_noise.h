// Attention moved by the roundings of its scores, which the rounding of its output does not show.
//
//   P_ij = exp(s_ij - l_i),  l_i the logarithm of the row's sum of exp(s_ij)
//   dS_ij = P_ij (dP_ij - D_i),  dP_ij = dO_i . v_j,  D_i = dO_i . O_i
//
// A ring keeps l_i in the wider type and merges blocks of keys by exp(l_block - l_i). Both have
// roundings of their own size, so that the weights of a row sum to 1 but for up to |l_i| roundings.
// It takes D from that output, and P in the backward from the rounded l_i, as FlashAttention does.
// Where a row's weight lies on one key, or all values that it sees are equal, the products dP and D
// are equal, and their roundings are all that is left of the difference. A softmax of the whole row
// has none of these errors. A move of dO or of the output does not show them, since both products
// follow it.
//
//   O_i   *= 1 + u_i e |l_i|                        the gradients of q, k and v follow
//   dS_ij += P_ij a_i,   a_i = u'_i e (2 sqrt(D) + |l_i|) * sum_d |dO_id O_id|
//
// with u and u' uniform in [-1, 1] and e half the gap above 1 of the wider type, times `roundings`.
// 2 sqrt(D): two products, each a sum over the D dims of a head, of whose D roundings some sqrt(D)
// are left. |l_i| is taken from the row's mean score, q_i scale (P k)_i: it is the larger part of
// l_i wherever l_i is large. P is the layer itself, which is linear in its values: dq_i += scale
// a_i (P k)_i, and dk is the gradient of those values for the output gradient scale a_i q_i. So it
// fits any layer that attends, on ranks too, where the layer communicates.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "model/decoder.h"

namespace shardproof::sim {

// Uniform in [-1, 1], float64, of the shape of `like`; equal for equal streams.
using DrawNoise = std::function<at::Tensor(const at::Tensor& like, const std::string& stream)>;

// Wraps every attention layer.
void move_scores(Decoder& model, double roundings, const DrawNoise& draw);

}  // namespace shardproof::sim
