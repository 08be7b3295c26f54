// The weights and batch of a case, loaded once per process and shared by its ranks.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "model/batch.h"
#include "model/config.h"
#include "model/weights.h"
#include "sim/scenario/case_spec.h"

namespace shardproof::sim {

struct CaseInputs {
  ModelConfig config;
  std::shared_ptr<const WeightMap> weights;  // full, read-only
  Batch batch;                               // global, read-only
};

// Throws Error(kBadInput) as load_weights and load_batch do.
std::shared_ptr<const CaseInputs> load_case_inputs(const CaseSpec& spec);

// Keeps the inputs of the case at hand: the ranks of one process ask for the same ones.
class CaseInputsCache {
 public:
  std::shared_ptr<const CaseInputs> get(const CaseSpec& spec);

 private:
  std::mutex mutex_;
  std::string key_;
  std::shared_ptr<const CaseInputs> inputs_;
};

}  // namespace shardproof::sim
