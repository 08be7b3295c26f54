// Logprobs and losses of a whole batch on one device, written as plainly as their definitions.
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
//   returns   [B, S]      wider float: log-probability of input_ids[:, t] given what precedes it;
//                         position 0 and padding are 0
at::Tensor dense_logprobs(const at::Tensor& logits, const Batch& batch);

// The loss of the global batch, a scalar in the dtype of `logprobs` [B, S]. Nothing counted: 0,
// with gradients 0. Where the mask is 0 the old logprobs and advantages count for nothing, whatever
// they are. Throws Error(kBadInput): an unknown loss or normalisation, or a batch without what it
// needs.
// `doubt` [B, S], or undefined: factors of the ratios where they are compared with a clip edge
// (perturbation.h).
at::Tensor dense_loss(const at::Tensor& logprobs, const Batch& batch, const sim::LossSpec& loss,
                      const at::Tensor& doubt = {});

// What a float64 run reports of a step beside its loss and norm: "tokens" and "sequences" that
// count; of clipped_pg the means over tokens of "ratio" and "kl" and the "clip_fraction"; of
// preference the means over pairs of "margin" and "accuracy", wins being margins above
// 1e-9 * |beta|: a policy equal to its reference wins none. Lower precisions: the counts alone.
struct Metric {
  std::string name;
  double value = 0;
};
std::vector<Metric> dense_metrics(const at::Tensor& logprobs, const Batch& batch,
                                  const sim::LossSpec& loss);

}  // namespace shardproof::golden
