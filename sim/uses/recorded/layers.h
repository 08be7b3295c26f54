// Tensors that hold all layers of a model, one after the other along their first dim.
#pragma once

#include "sim/uses/recorded/recorded_run.h"

namespace shardproof::sim::recorded {

// Megatron's names stand for all layers at once: decoder.layers.mlp.router.weight is [layers, ..],
// and each piece of it lies in one layer. In both runs, and in the reference's repeats, such a
// parameter, its gradient and its state become those of the layers, decoder.layers.1.mlp.router
// .weight and so on, which have places of their own in the order of the computation. Tensors of
// which a piece spans layers, or has no box, stay as they are.
void split_layers(RecordedRun& run, RecordedRun& reference);

// "decoder.layers.mlp.weight" of "decoder.layers.1.mlp.weight"; other names stay.
std::string name_without_layer(const std::string& parameter);

}  // namespace shardproof::sim::recorded
