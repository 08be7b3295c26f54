// Logprobs and losses of a whole batch on one device, written as their definitions.
//
// Legend: B samples, S positions, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/batch.h"
#include "sim/case/case_spec.h"

namespace shardproof::golden {

//   logits    [B, S, V]   any float
//   moves     [B, S, 1]   wider float: by how much a member of an ensemble takes each row's log of
//                         the sum too large (Perturbation::row_moves); undefined: by nothing
//   returns   [B, S]      wider float: log-probability of input_ids[:, t] given the tokens before;
//                         position 0 and padding are 0
at::Tensor dense_logprobs(const at::Tensor& logits, const Batch& batch,
                          const at::Tensor& moves = {});

// [B, S, V] log-probabilities of the same logits and moves. The gradient has the probabilities that
// these are the logs of.
at::Tensor dense_log_softmax(const at::Tensor& logits, const at::Tensor& moves);

// The loss of the global batch, a scalar in the dtype of `logprobs` [B, S]. When nothing counts,
// the loss and its gradients are 0. Old logprobs and advantages have no effect where the mask is 0.
// Throws Error(kBadInput) for an unknown loss or normalization, and for a batch without the tensors
// that the loss needs. `doubt`, [B, S] or undefined, multiplies the ratios where they are compared
// with a clip edge (perturbation.h).
at::Tensor dense_loss(const at::Tensor& logprobs, const Batch& batch, const LossOptions& loss,
                      const at::Tensor& doubt = {});

// The metrics of a float64 step besides loss and norm: the counts "tokens" and "sequences"; for
// clipped_pg the means over tokens "ratio" and "kl" and the "clip_fraction"; for preference the
// means over pairs "margin" and "accuracy". A win is a margin above 1e-9 * |beta|, so a policy
// equal to its reference wins none. Lower precisions do not report decisions
// (is_of_decisions).
struct Metric {
  std::string name;
  double value = 0;
};
std::vector<Metric> dense_metrics(const at::Tensor& logprobs, const Batch& batch,
                                  const LossOptions& loss);

}  // namespace shardproof::golden
