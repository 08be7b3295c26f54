// Attention over a sequence that is cut over the Ulysses ranks: each rank gets the whole sequence
// for its share of the heads, attends, and sends the results back.
//
//   q [B, T_u, H, D]  --all_to_all-->  [B, T, H/U, D]  --attention-->  [B, T, H/U, D]
//                                                      --all_to_all-->  [B, T_u, H, D]
//
// With context parallelism T is this cp rank's part of the sequence, in its local order, and the
// attention in the middle is the ring over cp.
//
// Legend: U Ulysses ranks, T_u = T / U positions of this rank, H, H_kv heads, D head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "comm/communicator.h"

namespace shardproof {

// q [B, T, h, D], k, v [B, T, h_kv, D] -> [B, T, h, D]
using AttentionCore =
    std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)>;

// Runs `core` between the exchanges. Rank u holds positions [u*T_u, (u+1)*T_u) of the core's
// sequence.
//
//   q        [B, T_u, H, D]      any float, any strides
//   k, v     [B, T_u, H_kv, D]   with fewer kv heads than ranks: repeated, and gradients are summed
//   returns  [B, T_u, H, D]
//
// Forward   three all_to_all, pipelined, "<label> qkv <i> forward"; one, "<label> out 0 forward"
// Backward  the same with scatter and gather dims exchanged
// Throws    Error(kRefused): U does not divide H
// Source    Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509; LightRFT parallel_utils.py
at::Tensor ulysses_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             Communicator& ulysses, const AttentionCore& core,
                             const std::string& label);

}  // namespace shardproof
