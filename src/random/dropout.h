// Dropout whose mask comes from a named stream.
//
//   forward    x [..] any float -> x * keep / (1 - p), keep[i] = u[i] >= p
//   backward   grad * keep / (1 - p): the mask is kept as bytes, x is not
//
// u are float32 from the tracker's current stream, one per element in row-major order. So the mask
// is the same in every precision, for every stride and number of threads. The tracker's fork
// decides which ranks share a mask: outside of forks all tp ranks do, inside a fork of the model
// parallel stream none do.
//
// Source: Megatron-LM random.py (dropout inside `get_cuda_rng_tracker().fork()`).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "random/rng_tracker.h"

namespace shardproof {

// p = 0 draws nothing; p = 1 gives zeros. No communication, no second derivative (asserted). Throws
// Error(kBadInput) for p outside 0..1, and the errors of RngTracker::uniform.
at::Tensor dropout(const at::Tensor& x, double p, RngTracker& rng, std::string_view place);

// The layer: it drops elements in training only.
class Dropout {
 public:
  // `place` names its draws. Throws Error(kBadInput) for p outside 0..1.
  Dropout(double p, std::string place);
  at::Tensor forward(const at::Tensor& x, RngTracker& rng) const;
  void set_training(bool training) { training_ = training; }
  bool training() const { return training_; }

 private:
  double p_;
  std::string place_;
  bool training_ = true;
};

}  // namespace shardproof
