// Attention whose score gradients are moved by roundings in the backward.
//
//   dS_ij = P_ij (dP_ij - D_i),  dP_ij = dO_i . v_j,  D_i = dO_i . O_i
//
// Every kernel takes the difference of products of dO that it has rounded, in the wider type. Where
// a row's weight lies on one key, or all values that it sees are equal, the products are equal and
// their roundings are all that is left of the difference: 0 where D is the sum of the same
// P_ij dP_ij, and not 0 where D is the product with the kept output (FlashAttention, rings). A move
// of dO or of the output does not show it, since both products follow it.
//
//   dS_ij += P_ij a_i,   a_i = u_i * eps / 2 * roundings * 2 sqrt(D) * sum_d |dO_id O_id|
//
// with u uniform in [-1, 1]: two products, each a sum over the D dims of a head, of whose D
// roundings some sqrt(D) are left. P is the layer itself, which is linear in its values:
// dq_i += scale a_i (P k)_i, and dk is the gradient of those values for the output gradient
// scale a_i q_i. So it fits any layer that attends, on ranks too, where the layer communicates.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "model/decoder.h"

namespace shardproof::sim {

// Uniform in [-1, 1], float64, of the shape of `like`; equal for equal streams.
using DrawNoise = std::function<at::Tensor(const at::Tensor& like, const std::string& stream)>;

// Wraps every attention layer; outputs stay as they are.
void move_score_gradients(Decoder& model, double roundings, const DrawNoise& draw);

}  // namespace shardproof::sim
