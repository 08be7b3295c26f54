// A probe that keeps every observation, and ids for the model of six_head_model.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/batch.h"
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

}  // namespace shardproof::tests
