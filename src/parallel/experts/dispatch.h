// The experts of a layer on the ranks of ep, and parts of each expert on those of etp: what each
// rank's tokens are to the experts that they have chosen, wherever those are.
//
// Legend: N experts, n = N / ep of them on this rank, E width of the stream, F of an expert, K
// chosen experts of a token; t tokens of this rank, which may be none and differ from those of
// other ranks.
//
//   x        [t, E]
//   ids      [t, K] int64, ascending; -1 for padding, which has no row
//   weights  [t, K] in the wider type
//   returns  [t, E]: the weighted sum over each token's experts, in the order of its ids
//
// Every rank makes the same calls, whatever its tokens choose: a rank or an expert without rows
// computes with none. The gradients of gate_up and down are sums over the tokens of all ranks of ep
// and etp; that of the weights is whole on the token's rank.
//
// Source: NVIDIA/Megatron-LM megatron/core/transformer/moe/token_dispatcher.py,
// MoEAlltoAllTokenDispatcher and MoEAllGatherTokenDispatcher. Golden: golden/dense_experts.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "comm/communicator.h"
#include "model/experts.h"

namespace shardproof {

// The ranks that hold all experts of a layer once. They must outlive the backward.
struct ExpertRanks {
  Communicator& ep;
  Communicator& etp;
  Communicator& all;  // of both
};

// This rank's experts, n of them and F/etp wide. The bias of down is whole on every rank of etp,
// but has a value other than 0 on one of them alone, since their results are summed.
using OwnExperts = ExpertTensors;

// Sends each chosen row to its expert's rank, and its result back.
//
//   forward    all_to_all over ep of the counts [ep, n]; all_gather over etp of what has arrived;
//              all_to_all of the rows over ep, all_gather over etp; the experts; reduce_scatter
//              over etp, all_to_all back
//   backward   the transposes, in reverse
at::Tensor experts_by_all_to_all(const at::Tensor& x, const at::Tensor& ids,
                                 const at::Tensor& weights, const OwnExperts& own,
                                 const ExpertRanks& ranks, const std::string& label,
                                 const StepContext& context);

// Gathers the tokens of all these ranks on each; each adds the part of its experts to their sums.
//
//   forward    all_gather of the numbers of tokens, ids, rows and weights; reduce_scatter of the
//              sums
//   backward   reduce_scatters of the gradients of rows and weights; all_gather of those of the
//   sums
at::Tensor experts_by_all_gather(const at::Tensor& x, const at::Tensor& ids,
                                 const at::Tensor& weights, const OwnExperts& own,
                                 const ExpertRanks& ranks, const std::string& label,
                                 const StepContext& context);

}  // namespace shardproof
