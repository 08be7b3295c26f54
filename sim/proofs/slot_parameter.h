// A layer of a slot, called without a model.
#pragma once

#include "model/slot.h"
#include "sim/proofs/workload.h"

namespace shardproof::sim {

// This rank's leaf as a parameter; if it is not trainable, without the leaf's graph.
ParameterPtr slot_parameter(const std::string& name, const TensorsByName& local,
                            bool trainable = true);

// The layer's output, without probes.
at::Tensor run_layer(Layer& layer, const at::Tensor& input);

}  // namespace shardproof::sim
