// A probe that keeps every observation, a decoder, and ids for the model of six_head_model.h.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "model/batch.h"
#include "model/decoder.h"
#include "observe/probe.h"

namespace shardproof::tests {

class Recorder final : public Probe {
 public:
  bool listens(Phase) const override { return true; }
  void observe(const Observation& observation) override { seen.push_back(observation); }
  // The first one of that name, or null.
  const Observation* find(const std::string& name) const {
    for (const Observation& observation : seen) {
      if (observation.name == name) return &observation;
    }
    return nullptr;
  }
  std::vector<Observation> seen;
};

// [3, 5]
inline at::Tensor some_ids() {
  return seeded_batch({.batch_size = 3, .seq_len = 5, .vocab_size = 23, .seed = 2}).input_ids;
}

inline Decoder ready(const ModelConfig& config, at::ScalarType dtype = at::kDouble) {
  Decoder model(config, seeded_weights(config, 3));
  model.materialise(Mesh(), 0, dtype, at::kCPU);
  return model;
}

// A gradient that differs at every position.
inline at::Tensor uneven_like(const at::Tensor& tensor) {
  return at::arange(tensor.numel(), at::kDouble)
      .mul(0.7)
      .sin()
      .view(tensor.sizes())
      .to(tensor.dtype());
}

}  // namespace shardproof::tests
