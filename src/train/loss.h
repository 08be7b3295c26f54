// The losses of a policy update on one microbatch of one dp rank. Every tp rank holds the same
// logprobs and computes the same loss.
//
// Legend: b sequences of the microbatch, s positions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace shardproof {

enum class LossKind { kNll, kClippedPolicyGradient };
enum class LossNormalization { kToken, kSequence };

struct LossOptions {
  LossKind kind = LossKind::kNll;
  LossNormalization normalization = LossNormalization::kToken;
  double clip_eps = 0.2;  // kClippedPolicyGradient: the ratio is clamped to 1 +- clip_eps
  double kl_beta = 0.01;  // kClippedPolicyGradient: weight of the KL term
};

// What is summed over the whole global batch before any loss is computed.
struct LossCounts {
  double tokens = 0;     // sum of the mask over all microbatches and dp ranks
  double sequences = 0;  // sequences with at least one counted token
};

struct LossInputs {
  at::Tensor logprobs;                 // [b, s] wider float, differentiable
  at::Tensor mask;                     // [b, s] the loss mask; 0 in column 0 and in padding
  at::Tensor prev_logprobs = {};       // [b, s], kClippedPolicyGradient
  at::Tensor reference_logprobs = {};  // [b, s], kClippedPolicyGradient with kl_beta != 0
  at::Tensor advantages = {};          // [b, s], kClippedPolicyGradient
};

// This microbatch's addend of the global loss, a scalar: the sum over all microbatches and dp ranks
// is the loss. Positions with mask 0 count for nothing, whatever stands in them (NaN included).
// With zero counts the loss and its gradient are 0. No communication. Source: seed 001, train.
at::Tensor loss_addend(const LossInputs& inputs, const LossCounts& counts,
                       const LossOptions& options);

}  // namespace shardproof
