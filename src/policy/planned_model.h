// A decoder with the layers of a rank on a mesh.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "parallel/registry/styles.h"

namespace shardproof {

// Not yet materialised. `comm` must outlive the model and every backward through it.
// `frozen`: as in Decoder::freeze().
Decoder planned_model(const ModelConfig& config, std::shared_ptr<const WeightMap> weights,
                      MeshComm& comm, const ParallelStyles& styles,
                      const std::vector<std::string>& frozen);

}  // namespace shardproof
