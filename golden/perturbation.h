// Random moves of one member of a golden's ensemble: runs of one device in a lower precision that
// differ from each other as correct sharded runs do, by roundings. How far the members lie from the
// float64 run is how far rounding may carry a correct run (sim/judge/diff/tolerance.h).
//
//   slot output           moved by a rounding (sim/case/record/rounding_noise.h), and in the
//   backward
//                         its gradient with it
//   parameter's gradient  moved by a rounding; then, for the optimizer, each element smaller than
//                         the unperturbed run's largest error in that gradient by up to that
//                         error: AdamW follows its sign, whatever its size
//   clipped tokens        a decision whose ratio is as near to an edge as the logprobs of the
//                         first members are wrong falls at random
//
// Sources: Monte Carlo arithmetic (Parker, UCLA CSD-970002), as in Verificarlo (Denis et al.,
// arXiv:1509.01347).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "model/decoder.h"

namespace shardproof::golden {

class Perturbation {
 public:
  // By sim::record_key: how far the unperturbed run is from the float64 run, at most.
  using Errors = std::map<std::string, double>;
  // Member 1, 2, .. of the ensemble; every member draws from streams of its own.
  Perturbation(int64_t member, int64_t seed, Errors errors = {});

  // `value`, any floating dtype and shape, moved; differentiable. `stream` names the draw and is
  // used once in a run.
  at::Tensor moved(const at::Tensor& value, const std::string& stream) const;
  // A parameter's reduced gradient with the elements moved that lie within its error.
  at::Tensor doubted_gradient(const at::Tensor& gradient, const std::string& parameter,
                              int64_t step) const;
  // [B, S], of the dtype of `logprobs`: what a token's ratio is multiplied by where it is compared
  // with a clip edge, and nowhere else.
  at::Tensor doubt(const at::Tensor& logprobs, int64_t step) const;
  // Wraps the layer of every slot so that its output is moved.
  void wrap(Decoder& model) const;

 private:
  double error_of(const std::string& key) const;

  int64_t seed_;
  std::string prefix_;
  Errors errors_;
};

}  // namespace shardproof::golden
