// A decoder with the layers of a rank on a mesh.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/cp/apply.h"
#include "parallel/tp/apply.h"

namespace shardproof {

struct ModelPlans {
  TensorParallelOptions tensor_parallel = {};
  ContextParallelOptions context_parallel = {};
  std::vector<std::string> frozen = {};  // as in Decoder::freeze()
};

// Not yet materialised. `comm` must outlive the model and every backward through it.
Decoder planned_model(const ModelConfig& config, std::shared_ptr<const WeightMap> weights,
                      MeshComm& comm, const ModelPlans& plans);

}  // namespace shardproof
