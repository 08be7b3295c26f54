// Layers of slots, called without a model, and the plain function of the linear ones.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

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

// The blocks of a fused dim whose blocks have one size.

// `stride` equal blocks of `size`. Throws Error(kRefused), naming the size by `what`, when stride
// does not divide it.
std::vector<int64_t> equal_blocks(int64_t size, int64_t stride, std::string_view what);

}  // namespace shardproof::sim::proofs
