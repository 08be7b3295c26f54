// Random perturbations of one member of a golden's ensemble. Members are single-device runs in a
// lower precision that differ by roundings, as correct sharded runs do. Their distance from the
// float64 run shows how far rounding may carry a correct run (sim/judge/diff/tolerance.h).
//
//   slot output           moved by a rounding (sim/case/recorder/rounding_noise.h), and in the
//                         backward its gradient too
//   scores of attention   a row's weights, and the two products whose difference a score's gradient
//                         is: moved by their roundings (sim/case/recorder/score_noise.h)
//   rows of logits        the log of a row's sum: moved by up to its own rounding and by that of 1,
//                         since the sum is rounded before its log is taken. All probabilities of
//                         the row share it, and it is all that is left of the logprob of a token
//                         that is almost certain
//   sums of float16       of a linear over what tp would share: infinite where one of 2 to 16 parts
//                         overflows (golden/parted_sums.h)
//   parameter's gradient  moved by a rounding. For the optimizer each element smaller than the
//                         unperturbed run's largest error in that gradient is also moved by up to
//                         that error: AdamW follows its sign, whatever its size. Where many small
//                         elements add up, as in the logprob of a rare token, this moves all such
//                         members to one side, so that every other four leave it out
//   clipped tokens        a random decision when the ratio is nearer to an edge than the error of
//                         the first members' logprobs
//
// Sources: Monte Carlo arithmetic (Parker, UCLA CSD-970002), as in Verificarlo (Denis et al.,
// arXiv:1509.01347).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "model/decoder.h"

namespace shardproof::golden {

class Perturbation {
 public:
  // The largest error of the unperturbed run against the float64 run, by sim::record_key.
  using Errors = std::map<std::string, double>;
  // Member 1, 2, .. of the ensemble; every member draws from its own streams. Values are moved by
  // up to so many roundings of their dtype.
  Perturbation(int64_t member, int64_t seed, Errors errors = {}, double roundings = 1);

  // Returns `value`, of any floating dtype and shape, perturbed; differentiable. `stream` names the
  // draw; use each name once in a run.
  at::Tensor moved(const at::Tensor& value, const std::string& stream) const;
  // [.., 1] in the wider dtype, of logits [.., V]: by how much each row's log of the sum is moved.
  at::Tensor row_moves(const at::Tensor& logits, const std::string& stream) const;
  // A parameter's reduced gradient, perturbed in the elements that are within its error.
  at::Tensor doubted_gradient(const at::Tensor& gradient, const std::string& parameter,
                              int64_t step) const;
  // [B, S] in the dtype of `logprobs`: factors of the ratios in comparisons with a clip edge.
  at::Tensor doubt(const at::Tensor& logprobs, int64_t step) const;
  // Wraps the layer of every slot so that its output is perturbed, and attention's scores.
  void wrap(Decoder& model) const;

 private:
  double error_of(const std::string& key) const;

  int64_t seed_;
  std::string prefix_;
  int64_t parts_;          // 2, 4, 8, 16 in turn
  bool doubts_gradients_;  // four members do, four do not, in turn
  Errors errors_;
  double roundings_;
};

}  // namespace shardproof::golden
