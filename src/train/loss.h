// The losses of a policy update on one microbatch of one dp rank. Every tp rank holds the same
// logprobs and computes the same loss.
//
// Legend: b sequences of the microbatch, s positions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/training_choices.h"

namespace shardproof {

// The number of neighboring samples that one term of the loss compares.
inline int64_t samples_compared(LossKind kind) { return kind == LossKind::kPreference ? 2 : 1; }

// Sums over the whole global batch, which must be known before any loss is computed.
struct LossCounts {
  double tokens = 0;                         // sum of the mask over all microbatches and dp ranks
  double sequences = 0;                      // sequences with at least one counted token
  double pairs = 0;                          // pairs whose sequences both have a counted token
  std::vector<double> tokens_of_heads = {};  // as `tokens`, of each extra head
};

struct LossInputs {
  at::Tensor logprobs;                 // [b, s] wider float, differentiable
  at::Tensor mask;                     // [b, s] the loss mask; 0 in column 0 and in padding
  at::Tensor prev_logprobs = {};       // [b, s], kClippedPolicyGradient
  at::Tensor reference_logprobs = {};  // [b, s], kl_beta != 0 or kPreference
  at::Tensor advantages = {};          // [b, s], kClippedPolicyGradient
};

// This microbatch's addend of the global loss, a scalar: the loss is the sum over all microbatches
// and dp ranks. Positions with mask 0 have no effect, whatever their values (NaN included). With
// zero counts the loss and its gradient are 0. No communication. Source: NeMo-RL
// dtensor_policy_worker.py, train. For kPreference b must be even; pairs are neighbors.
at::Tensor loss_addend(const LossInputs& inputs, const LossCounts& counts,
                       const LossOptions& options);

// This microbatch's addend of the loss of an extra head, a scalar: the mean of -logprob over the
// tokens that this head predicts and the mask counts, of which a sequence lacks the first 1 +
// depth. 0 where no token counts. Source: NVIDIA/Megatron-LM
// megatron/core/transformer/multi_token_prediction.py, process_mtp_loss.
at::Tensor head_loss_addend(const at::Tensor& logprobs, const at::Tensor& mask, int64_t depth,
                            const LossCounts& counts);
// "logprobs", and "logprobs.1" of extra head 1.
std::string logprobs_name(int64_t depth);
// [b, s]: the mask of the tokens that extra head `depth` = 1, 2, .. predicts.
at::Tensor mask_of_head(const at::Tensor& mask, int64_t depth);

// One metric besides the loss: the sum of its addends over all microbatches and dp ranks.
struct LossMetric {
  std::string name;
  at::Tensor addend;  // scalar, without gradient
};

// kClippedPolicyGradient, means over counted tokens: "ratio", "kl" (with kl_beta != 0),
// "clip_fraction" of tokens whose ratio is outside 1 +- clip_eps. kPreference, means over pairs:
// "margin", "accuracy" (margins above 1e-9 * |kl_beta|, so that a policy equal to its reference
// wins none, however its sums round). kNll: none. Masks and counts apply as in loss_addend. No
// communication.
std::vector<LossMetric> loss_metrics(const LossInputs& inputs, const LossCounts& counts,
                                     const LossOptions& options);

// The same metrics, all 0: of a rank that has no logprobs.
std::vector<LossMetric> no_metrics(const LossOptions& options, at::Device device);

// This microbatch's addends of LossCounts, from its mask [b, s].
LossCounts counts_of(const at::Tensor& mask, int64_t extra_heads = 0);

}  // namespace shardproof
