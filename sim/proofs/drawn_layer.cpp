#include "sim/proofs/drawn_layer.h"

#include <ATen/ATen.h>

#include "parallel/tp/stream_init.h"
#include "random/rng_seeds.h"
#include "sim/proofs/drawn_weight.h"
#include "sim/proofs/exchanged_state.h"
#include "sim/proofs/layer_parameter_inputs.h"
#include "tensor/shard.h"

namespace shardproof::sim {
namespace {

// In float64 whatever the layer's type is, as one device draws.
void draw_wide(const at::Tensor& values) {
  const at::Tensor drawn = at::empty(values.sizes(), at::kDouble);
  normal_init(kWeightSeed, kWeightStd)(drawn);
  at::Tensor(values).copy_(drawn);
}

int64_t written_here(const ShardedState& state, const std::string& key) {
  int64_t elements = 0;
  for (const ShardedTensor& tensor : state) {
    if (tensor.key == key && tensor.main_replica()) elements += tensor.data.numel();
  }
  return elements;
}

}  // namespace

TpLayer drawn_layer(const LayerParameterOptions& options, const TpLayerSpec& spec, Communicator& tp,
                    RngTracker& rng) {
  seed_streams(
      rng, kWeightSeed,
      {.tp_rank = tp.rank(), .tp_size = tp.size(), .etp_rank = tp.rank(), .etp_size = tp.size()});
  if (!options.from_streams) return TpLayer(spec, draw_wide, InitFrom::kMaster, tp);
  const char* own = spec.expert_parallel ? kExpertParallelRng : kModelParallelRng;
  const std::string stream = options.stream.empty() ? own : options.stream;
  return TpLayer(spec, stream_init(rng, stream, kWeightStd, "weight"), InitFrom::kOwnStream, tp);
}

StateKey saved_key(const LayerParameterOptions& options, int64_t data_parallel_rank) {
  StateKey key{.prefix = "layer.", .data_parallel_rank = data_parallel_rank};
  if (options.stacked) key.prepended.push_back({.index = 3, .size = 8});
  if (options.one_run) key.form = RunForm::kPerRank;
  return key;
}

SavedLayer saved_layer(const LayerParameterOptions& options, at::ScalarType dtype, MeshComm& comm,
                       RngTracker& rng) {
  TpLayerSpec spec = options.drawing;
  spec.dtype = dtype;
  spec.axis = "tp";
  const int64_t dp = comm.mesh().world_size() / options.saved_tp;
  const Mesh mesh({{"dp", dp}, {"tp", options.saved_tp}});
  MeshComm ranks = comm.on_mesh("saving", mesh);
  TpLayer layer = drawn_layer(options, spec, ranks.along("tp"), rng);
  if (LayerParameter* bias = layer.bias()) {
    bias->tensor.detach().copy_(
        cut(bias_values(options, spec), spec.bias_layout(), mesh, ranks.rank()));
  }
  const ShardedState own =
      layer.sharded_state(saved_key(options, mesh.coordinate("dp", ranks.rank())));
  return {.state = state_of_all_ranks(own, ranks.world()),
          .of_weight = written_here(own, "layer.weight"),
          .of_bias = written_here(own, "layer.bias")};
}

}  // namespace shardproof::sim
