// A layer of a slot outside of a model: its parameters, and one call.
#pragma once

#include "model/slot.h"
#include "sim/proofs/workload.h"

namespace shardproof::sim {

// This rank's leaf as a parameter; one that is not trained holds its values alone.
ParameterPtr slot_parameter(const std::string& name, const TensorsByName& local,
                            bool trainable = true);

// The layer's output; no probe sees it.
at::Tensor run_layer(Layer& layer, const at::Tensor& input);

}  // namespace shardproof::sim
