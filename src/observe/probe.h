// The interface through which a run is watched.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "observe/observation_kind.h"
#include "observe/phase.h"

namespace shardproof {

// Which part of a golden quantity one rank holds.
enum class Part {
  kFull,     // this rank's cut of the value itself
  kPartial,  // one addend: the sum of the pieces over `partial_axes` is the value
};

// One named tensor at one time. The names are the same in the golden and on every rank:
//   forward   "<slot>.output", "logprobs", "loss"
//   backward  "<slot>.grad_input" (".grad_input.1" for a second input), gradients of activations
//   step      "grad.<parameter>", "grad_norm", "param.<parameter>", "exp_avg.<parameter>", ...
struct Observation {
  ObservationKind kind = ObservationKind::kUnknown;
  std::string name;
  Phase phase = Phase::kForward;
  int64_t step = 0;        // training steps count from 1; 0 is scoring
  int64_t microbatch = 0;  // of this rank; always 0 in the golden
  at::Tensor tensor;       // detached by the observer; never written to
  Layout layout = {};      // the cuts except those over tokens, which token_map has
  // [b, s] int64 on the CPU, one entry per token of the rank's microbatch BEFORE `layout` cuts dims
  // 0 and 1: sample * S + position in the golden's batch, -1 for padding and dummies. When defined,
  // dims 0 and 1 of the (uncut) tensor are tokens; otherwise the dims are those of the golden.
  at::Tensor token_map = {};
  double scale = 1.0;  // actual = scale * golden, declared by the sharded code
  Part part = Part::kFull;
  std::vector<std::string> partial_axes = {};
  // For a norm's output: its input and its weight, as this rank's layer read them.
  std::vector<at::Tensor> inputs = {};
  // For a parameter with a wider master: what the forward reads until the next update. Undefined
  // where there is no such copy.
  at::Tensor leaf = {};
  // For a boundary: "received by stage 2 (chunk 1)".
  std::string site = {};
};

class Probe {
 public:
  virtual ~Probe() = default;
  // Whether observations of this phase have any use. Callers should not prepare others.
  virtual bool listens(Phase phase) const = 0;
  virtual void observe(const Observation& observation) = 0;
};

// Ignores all observations.
class NoProbe final : public Probe {
 public:
  bool listens(Phase) const override { return false; }
  void observe(const Observation&) override {}
};

}  // namespace shardproof
