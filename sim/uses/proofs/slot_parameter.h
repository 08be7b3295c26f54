// Layers of slots, called without a model, and the plain function of the linear ones.
#pragma once

#include "model/slot.h"
#include "sim/uses/proofs/workload.h"

namespace shardproof::sim::proofs {

// This rank's leaf as a parameter; if it is not trainable, without the leaf's graph.
ParameterPtr slot_parameter(const std::string& name, const TensorsByName& local,
                            bool trainable = true);

// The layer's output, without probes.
at::Tensor run_layer(Layer& layer, const at::Tensor& input);

// y = x W^T (+ bias) of the full "x", "weight" and, with option bias, "bias". With option frozen
// the weight has no gradient.
WorkloadTensors plain_linear(const TensorsByName& full, const Options& options);

}  // namespace shardproof::sim::proofs
