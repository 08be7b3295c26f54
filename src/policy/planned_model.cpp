#include "policy/planned_model.h"

namespace shardproof {

Decoder planned_model(const ModelConfig& config, std::shared_ptr<const WeightMap> weights,
                      MeshComm& comm, const ParallelStyles& styles,
                      const std::vector<std::string>& frozen) {
  Decoder model(config, std::move(weights));
  styles.apply(model, comm);
  model.freeze(frozen);
  return model;
}

}  // namespace shardproof
