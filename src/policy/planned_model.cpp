#include "policy/planned_model.h"

#include "parallel/ulysses/apply.h"

namespace shardproof {

Decoder planned_model(const ModelConfig& config, std::shared_ptr<const WeightMap> weights,
                      MeshComm& comm, const ModelPlans& plans) {
  Decoder model(config, std::move(weights));
  apply_tensor_parallel(model, comm, plans.tensor_parallel);
  apply_context_parallel(model, comm, plans.context_parallel);
  apply_ulysses(model, comm);
  model.freeze(plans.frozen);
  return model;
}

}  // namespace shardproof
