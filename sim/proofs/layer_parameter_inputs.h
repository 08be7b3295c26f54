// What layer_parameters starts from: x, and the parameters that one device would draw.
#pragma once

#include "sim/proofs/drawn_weight.h"
#include "sim/proofs/layer_parameter_options.h"

namespace shardproof::sim {

// x [samples, tokens, E] or ids [samples, tokens], weight, and bias where the layer has one.
WorkloadTensors layer_parameter_inputs(Draw& draw, const Options& options);

// Of what the layer on this mesh gives for such an x.
Layout layer_output_layout(const TpLayerSpec& spec);

// The weight of the layer that draws, with the draws of its streams.
DrawnWeight plainly_drawn(const LayerParameterOptions& options);

// float64. Zeros at first; what saves has values, so that it is seen where they go.
at::Tensor bias_values(const LayerParameterOptions& options, const TpLayerSpec& spec);

}  // namespace shardproof::sim
