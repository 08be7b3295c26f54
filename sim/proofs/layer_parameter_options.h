// What the options of layer_parameters (layer_parameters_workload.h) say, read and checked.
#pragma once

#include <string>

#include "sim/proofs/tp_layer.h"
#include "sim/proofs/workload.h"

namespace shardproof::sim {

struct LayerParameterOptions {
  TpLayerSpec layer;    // on this mesh
  TpLayerSpec drawing;  // the one that draws its weight: that one, or the one that saves
  int64_t samples = 0, tokens = 0;
  bool from_streams = false;  // each rank draws its part from its own stream; else from a master
  std::string stream;         // another stream than the layer's own; "": its own
  int64_t tp_ranks = 1;       // of own streams: whose parts one device draws
  int64_t saved_tp = 0;       // 0: nobody saves
  bool stacked = false, one_run = false;

  bool saves() const { return saved_tp != 0; }
  bool embedding() const { return layer.kind == TpLayerKind::kEmbedding; }
};

// Throws Error(kBadInput): an unknown name, a number out of range, options that exclude each other.
LayerParameterOptions layer_parameter_options(const Options& options);

// Throws Error(kRefused): what the mesh cannot do.
void check_on_mesh(const LayerParameterOptions& options, const Mesh& mesh);

}  // namespace shardproof::sim
