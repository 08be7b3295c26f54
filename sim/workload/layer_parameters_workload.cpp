#include "sim/workload/layer_parameters_workload.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "parallel/tp/stream_init.h"
#include "random/rng_seeds.h"
#include "sim/workload/drawn_weight.h"
#include "sim/workload/exchanged_state.h"
#include "tensor/shard.h"

namespace shardproof::sim {
namespace {

constexpr int64_t kSavedBiasSeed = 91;

[[noreturn]] void bad_parameters(std::string what, std::string fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = std::move(what), .fix = std::move(fix)});
}

bool draws_from_streams(const Options& options) {
  const std::string init = options["init"];
  if (init != "master" && init != "own_stream") {
    bad_parameters(fmt::format("option init is '{}'", init), "known are master, own_stream");
  }
  return init == "own_stream";
}

// The layer on this mesh.
TpLayerSpec spec_of(const Options& options) {
  return {.kind = tp_layer_kind(options["layer"].get<std::string>()),
          .cut_features = options["cut_features"],
          .whole_features = options["whole_features"],
          .stride = options["stride"],
          .sequence_parallel = options["sequence_parallel"],
          .expert_parallel = options["expert_parallel"],
          .axis = options["axis"]};
}

// The layer that draws: that one, or the one that saves.
TpLayerSpec drawing_spec(const Options& options) {
  TpLayerSpec spec = spec_of(options);
  const int64_t saved = options["saved_features"];
  if (saved != 0) spec.cut_features = saved;
  return spec;
}

void check_rank_option(const Options& options, const char* name, int64_t least) {
  const int64_t count = options[name];
  if (count >= least && count <= kMostRanks) return;
  bad_parameters(fmt::format("option {} is {}", name, count),
                 fmt::format("give a number of tp ranks, {} to {}", least, kMostRanks));
}

void check_parameter_options(const Options& options) {
  check_rank_option(options, "saved_tp", 0);
  check_rank_option(options, "tp_ranks", 1);
  const TpLayerSpec spec = spec_of(options);
  if (spec.axis != "tp" && spec.axis != "cp" && spec.axis != "ulysses") {
    bad_parameters("option axis is '" + spec.axis + "'", "known are tp, cp, ulysses");
  }
  const bool embedding = spec.kind == TpLayerKind::kEmbedding;
  const auto refuse_pair = [](bool both, const char* what, const char* fix) {
    if (both) bad_parameters(what, fix);
  };
  refuse_pair(embedding && (spec.stride != 1 || spec.expert_parallel),
              "layer: embedding with stride or expert_parallel, which it does not have",
              "leave them out, or take a column or a row");
  refuse_pair(spec.expert_parallel && spec.sequence_parallel,
              "expert_parallel with sequence_parallel: an expert's tokens are dispatched, not cut",
              "leave one of them out");
  refuse_pair(options["stream"] != "" && !draws_from_streams(options),
              "option stream with init: master, which draws from none", "set init: own_stream");
  const bool saves = options["saved_tp"] != 0;
  refuse_pair(options["saved_features"] < 0 || options["cut_features"] < 0,
              "cut_features or saved_features below 0", "give sizes of 0 or more");
  refuse_pair(
      !saves && (options["saved_features"] != 0 || options["stacked"] || options["one_run"]),
      "saved_features, stacked or one_run of a layer that nobody saves", "set saved_tp");
}

DrawnWeight plainly_drawn(const Options& options) {
  const TpLayerSpec spec = drawing_spec(options);
  if (!draws_from_streams(options)) return drawn_from_master(spec);
  const int64_t saved_tp = options["saved_tp"];
  return drawn_from_streams(spec, saved_tp != 0 ? saved_tp : options["tp_ranks"].get<int64_t>());
}

// What a layer of another size than the saved one holds of it; the rest is 0.
at::Tensor fitted(const at::Tensor& drawn, const TpLayerSpec& spec) {
  const at::Tensor weight = at::zeros(spec.weight_shape(), at::kDouble);
  const int64_t dim = spec.cut_dim(), both = std::min(drawn.size(dim), spec.cut_features);
  weight.narrow(dim, 0, both).copy_(drawn.narrow(dim, 0, both));
  return weight;
}

// Zeros at first; what saves has values, so that it is seen where they go.
at::Tensor bias_values(const Options& options, const TpLayerSpec& spec) {
  const at::Tensor zeros = at::zeros(spec.bias_shape(), at::kDouble);
  if (options["saved_tp"] == 0) return zeros;
  return zeros.normal_(0, 1, at::detail::createCPUGenerator(kSavedBiasSeed));
}

Layout weight_layout(const TpLayerSpec& spec) {
  return Layout({Cut::in_blocks(spec.cut_dim(), spec.axis, spec.blocks())});
}

Layout bias_layout(const TpLayerSpec& spec) {
  return spec.kind == TpLayerKind::kRow ? Layout() : weight_layout(spec);
}

// Dim 0 is samples, dim 1 tokens, dim 2 features.
Layout features_layout(const TpLayerSpec& spec, bool cut_features) {
  Layout layout({Cut::even(0, "dp")});
  if (cut_features) {
    layout.append(Cut::in_blocks(2, spec.axis, spec.blocks()));
  } else if (spec.sequence_parallel) {
    layout.append(Cut::even(1, spec.axis));
  }
  return layout;
}

Layout output_layout(const TpLayerSpec& spec) {
  if (spec.kind != TpLayerKind::kEmbedding) {
    return features_layout(spec, spec.kind == TpLayerKind::kColumn);
  }
  return spec.sequence_parallel ? Layout({Cut::even(0, spec.axis), Cut::even(1, "dp")})
                                : Layout({Cut::even(0, "dp")});
}

WorkloadTensors parameter_inputs(Draw& draw, const Options& options) {
  check_parameter_options(options);
  const TpLayerSpec spec = spec_of(options);
  const int64_t samples = options["samples"], tokens = options["tokens"];
  std::vector<std::string> addends;  // what the marks leave to others
  if (spec.expert_parallel) addends.push_back("dp");
  const at::Tensor weight = fitted(plainly_drawn(options).values, spec);
  if (spec.kind == TpLayerKind::kEmbedding) {
    return {
        {"x", draw.integers(spec.cut_features, {samples, tokens}), Layout({Cut::even(0, "dp")})},
        {"weight", weight, weight_layout(spec), addends}};
  }
  const bool row = spec.kind == TpLayerKind::kRow;
  const int64_t in = row ? spec.cut_features : spec.whole_features;
  return {{"x", draw.normal({samples, tokens, in}), features_layout(spec, row)},
          {"weight", weight, weight_layout(spec), addends},
          {"bias", bias_values(options, spec), bias_layout(spec), addends}};
}

// [elements of the weight, of the bias], in the type of the weight.
at::Tensor element_counts(int64_t of_weight, int64_t of_bias, const at::Tensor& like) {
  return at::tensor({static_cast<double>(of_weight), static_cast<double>(of_bias)}, at::kDouble)
      .to(like.options());
}

WorkloadTensors plain_parameters(const TensorsByName& full, const Options& options) {
  const TpLayerSpec spec = spec_of(options), drawing = drawing_spec(options);
  const at::Tensor &x = full.at("x"), &weight = full.at("weight");
  const bool embedding = spec.kind == TpLayerKind::kEmbedding, saves = options["saved_tp"] != 0;
  WorkloadTensors out;
  if (draws_from_streams(options) && !saves) {
    out.push_back({"draw.weight", plainly_drawn(options).draws});
  }
  if (!draws_from_streams(options) && !saves) out.push_back({"master", weight.detach()});
  const int64_t of_bias = embedding ? 0 : full.at("bias").numel();
  if (saves) {
    const int64_t elements = drawing.cut_features * drawing.whole_features;
    out.push_back({"written", element_counts(elements, of_bias, weight)});
  }
  out.push_back({"weight", weight.detach()});
  if (!embedding) out.push_back({"bias", full.at("bias").detach()});
  out.push_back({"counted", element_counts(weight.numel(), of_bias, weight)});
  if (!embedding) {
    out.push_back({"y", x.matmul(weight.t()) + full.at("bias")});
  } else {
    const at::Tensor y = weight.index({x});
    out.push_back({"y", spec.sequence_parallel ? y.transpose(0, 1) : y});
  }
  return out;
}

// Refusals, before anything is sent.
void check_on_mesh(const Options& options, const Mesh& mesh) {
  const int64_t saved_tp = options["saved_tp"], world = mesh.world_size();
  if (saved_tp != 0 && world % saved_tp != 0) {
    throw Error({.kind = ErrorKind::kRefused,
                 .what = fmt::format("a state saved over {} tp ranks, where the world has {}",
                                     saved_tp, world),
                 .fix = "let saved_tp divide the ranks of the mesh"});
  }
  const int64_t told = options["tp_ranks"], ranks = mesh.size(options["axis"].get<std::string>());
  if (saved_tp == 0 && draws_from_streams(options) && told != ranks) {
    throw Error({.kind = ErrorKind::kRefused,
                 .what = fmt::format("one device draws the parts of {} tp ranks, the mesh has {}",
                                     told, ranks),
                 .fix = fmt::format("set options.tp_ranks to {}", ranks)});
  }
}

// A layer that draws its weight on `tp` as the options say.
TpLayer drawn_layer(const Options& options, TpLayerSpec spec, Communicator& tp, RngTracker& rng) {
  seed_streams(
      rng, kWeightSeed,
      {.tp_rank = tp.rank(), .tp_size = tp.size(), .etp_rank = tp.rank(), .etp_size = tp.size()});
  if (draws_from_streams(options)) {
    const std::string asked = options["stream"];
    const char* own = spec.expert_parallel ? kExpertParallelRng : kModelParallelRng;
    const InitMethod init = stream_init(rng, asked.empty() ? own : asked, kWeightStd, "weight");
    return TpLayer(spec, init, InitFrom::kOwnStream, tp);
  }
  const InitMethod wide = [](const at::Tensor& values) {
    const at::Tensor drawn = at::empty(values.sizes(), at::kDouble);
    normal_init(kWeightSeed, kWeightStd)(drawn);
    at::Tensor(values).copy_(drawn);
  };
  return TpLayer(spec, wide, InitFrom::kMaster, tp);
}

StateKey state_key(const Options& options, int64_t data_parallel_rank) {
  StateKey key{.prefix = "layer.", .data_parallel_rank = data_parallel_rank};
  if (options["stacked"]) key.prepended.push_back({.index = 3, .size = 8});
  if (options["one_run"]) key.form = RunForm::kPerRank;
  return key;
}

int64_t written_here(const ShardedState& state, const std::string& key) {
  int64_t elements = 0;
  for (const ShardedTensor& tensor : state) {
    if (tensor.key == key && tensor.main_replica()) elements += tensor.data.numel();
  }
  return elements;
}

// The same ranks as dp x tp = saved_tp, drawing the layer and saving it: what all of them saved,
// and how many elements of each parameter this rank is the one to write.
struct SavedLayer {
  ShardedState state;
  int64_t of_weight, of_bias;
};
SavedLayer saved_layer(const Options& options, at::ScalarType dtype, MeshComm& comm,
                       RngTracker& rng) {
  TpLayerSpec spec = drawing_spec(options);
  spec.dtype = dtype;
  spec.axis = "tp";
  const int64_t saved_tp = options["saved_tp"];
  const Mesh mesh({{"dp", comm.mesh().world_size() / saved_tp}, {"tp", saved_tp}});
  MeshComm ranks = comm.on_mesh("saving", mesh);
  TpLayer layer = drawn_layer(options, spec, ranks.along("tp"), rng);
  if (LayerParameter* bias = layer.bias()) {
    bias->tensor.detach().copy_(
        cut(bias_values(options, spec), bias_layout(spec), mesh, ranks.rank()));
  }
  const auto key = state_key(options, mesh.coordinate("dp", ranks.rank()));
  const ShardedState own = layer.sharded_state(key);
  return {.state = state_of_all_ranks(own, ranks.world()),
          .of_weight = written_here(own, "layer.weight"),
          .of_bias = written_here(own, "layer.bias")};
}

// The harness's leaf, whose gradient it judges, takes the place of the layer's. Its own values are
// the answer: the layer's take their place, or NaN until a state is loaded.
void hold_in_leaf(LayerParameter& parameter, const at::Tensor& leaf, bool with_values) {
  leaf.detach().fill_(std::numeric_limits<double>::quiet_NaN());
  if (with_values) leaf.detach().copy_(parameter.tensor.detach());
  parameter.tensor = leaf;
}

void finish_gradients(TpLayer& layer, MeshComm& comm, const std::string& axis) {
  for (LayerParameter* parameter : layer.parameters()) {
    at::Tensor grad = parameter->tensor.grad();
    if (!grad.defined()) grad = at::zeros_like(parameter->tensor);
    const auto sum_over = [&](const std::string& ranks) {
      grad = comm.along(ranks).all_reduce(grad, ReduceOp::kSum, "grad " + parameter->name);
    };
    if (parameter->sequence_parallel) sum_over(axis);
    if (parameter->allreduce) sum_over("dp");
    parameter->tensor.mutable_grad() = grad;
  }
}

int64_t counted_here(const LayerParameter* parameter, const Communicator& tp) {
  const bool counts = parameter != nullptr && is_not_tp_duplicate(*parameter, tp.rank());
  return counts ? parameter->tensor.numel() : 0;
}

WorkloadTensors sharded_parameters(const TensorsByName& local, MeshComm& comm,
                                   const Options& options, WorkloadNotes& notes) {
  check_on_mesh(options, comm.mesh());
  TpLayerSpec spec = spec_of(options);
  Communicator& tp = comm.along(spec.axis);
  spec.dtype = local.at("weight").scalar_type();
  DrawLog log;
  RngTracker rng(&log);
  const bool saves = options["saved_tp"] != 0;
  const auto layer =
      std::make_shared<TpLayer>(saves ? TpLayer(spec, zero_init(), InitFrom::kMaster, tp)
                                      : drawn_layer(options, spec, tp, rng));
  for (LayerParameter* parameter : layer->parameters()) {
    hold_in_leaf(*parameter, local.at(parameter->name), !saves);
  }
  WorkloadTensors out;
  const Layout parts({Cut::even(0, spec.axis)});
  if (draws_from_streams(options) && !saves) {
    out.push_back({"draw.weight", log.tensor("weight"), parts});
  }
  if (!draws_from_streams(options) && !saves) out.push_back({"master", layer->weight().master});
  if (saves) {
    const SavedLayer saved = saved_layer(options, spec.dtype, comm, rng);
    layer->load(saved.state, state_key(options, 0));
    out.push_back({"written",
                   element_counts(saved.of_weight, saved.of_bias, local.at("weight")),
                   {},
                   {"dp", "cp", "ulysses", "tp"}});
  }
  out.push_back({"weight", layer->weight().tensor.detach().clone(), weight_layout(spec)});
  if (layer->bias()) {
    out.push_back({"bias", layer->bias()->tensor.detach().clone(), bias_layout(spec)});
  }
  out.push_back({"counted",
                 element_counts(counted_here(&layer->weight(), tp), counted_here(layer->bias(), tp),
                                local.at("weight")),
                 {},
                 {spec.axis}});
  out.push_back({"y", layer->forward(local.at("x")), output_layout(spec)});
  notes.after_backward = [layer, &comm, axis = spec.axis]() -> WorkloadTensors {
    finish_gradients(*layer, comm, axis);
    return {};
  };
  return out;
}

}  // namespace

Workload layer_parameters_workload() {
  return {.name = "layer_parameters",
          .about = "first values, saved state and marks of a tensor parallel layer's parameters",
          .options = {{"layer", "column"},
                      {"samples", 12},
                      {"tokens", 12},
                      {"cut_features", 24},
                      {"whole_features", 5},
                      {"stride", 1},
                      {"sequence_parallel", false},
                      {"expert_parallel", false},
                      {"axis", "tp"},
                      {"init", "master"},
                      {"tp_ranks", 1},
                      {"stream", ""},
                      {"saved_tp", 0},
                      {"saved_features", 0},
                      {"stacked", false},
                      {"one_run", false}},
          .inputs = parameter_inputs,
          .plain = plain_parameters,
          .sharded_with_notes = sharded_parameters};
}

}  // namespace shardproof::sim
