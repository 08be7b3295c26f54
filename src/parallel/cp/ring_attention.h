// Attention over sequences whose tokens are spread over the ranks of the context-parallel axis.
//
// Every rank keeps its queries. The keys and values circulate (rotation.h), and the result of each
// block is merged (block_attention.h). In the backward they circulate again, and each block's
// gradient travels with it until it reaches its rank. Only this rank's own q, k, v, out and lse are
// kept in between.
//
//   cp = 3         step 0      step 1      step 2       at the end
//   rank 0 has     kv 0        kv 2        kv 1         grad kv 0
//   rank 1 has     kv 1        kv 0        kv 2         grad kv 1
//   rank 2 has     kv 2        kv 1        kv 0         grad kv 2
//
// Legend: B batch, T_cp positions of this rank, H and H_kv heads, D head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "comm/communicator.h"
#include "parallel/cp/rotation.h"
#include "parallel/cp/visibility.h"
#include "sequence/sequence_layout.h"

namespace shardproof {

struct RingAttentionOptions {
  Rotation rotation = Rotation::kSendRecv;
  AttentionRule rule = {};
  std::optional<double> scale = std::nullopt;  // of the scores; default D^-0.5
  int64_t tile_length = 512;                   // at most tile x tile scores are held at a time
  std::string label = "ring attention";        // of the calls: "<label> kv forward", ...
};

// Attention of this rank's queries to the keys of all ranks, within each sequence.
//
//   q        [B, T_cp, H, D]      any float, any strides; the tokens that `layout` gives this rank
//   k, v     [B, T_cp, H_kv, D]   H is a multiple of H_kv: query head h uses kv head h / (H / H_kv)
//   sinks    [H], or undefined    a logit of each head in its softmax, which has no value
//   returns  [B, T_cp, H, D]      in q's dtype, computed in the wider type; padding gives 0
//
// Forward   send/recv (or all_to_all) of k and v, cp - 1 times; or one all_gather
// Backward  the same again, and cp times the gradients of k and v in the wider type; or one
//           reduce_scatter of them
// Golden    masked softmax over the full scores, differentiated by autograd
// Throws    nothing: layouts refuse lengths that do not divide
//
// The sums have one order per rank, so each run gives the same bits. `layout` must have cp_size
// equal to the size of `cp`. A backward after `cp` has ended throws Error(kBadInput). No second
// derivatives (asserted). A group of one communicates nothing and computes plain tiled attention.
// Source    Liu et al., "Ring Attention", arXiv:2310.01889; NeMo-RL
//           dtensor_policy_worker.py, context_parallel
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const SequenceLayout& layout, Communicator& cp,
                          const RingAttentionOptions& options = {}, const at::Tensor& sinks = {});

}  // namespace shardproof
