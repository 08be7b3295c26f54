#include "sim/proofs/layer_parameter_options.h"

#include <fmt/format.h>

#include "base/error.h"

namespace shardproof::sim {
namespace {

[[noreturn]] void bad_parameters(std::string what, std::string fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = std::move(what), .fix = std::move(fix)});
}

int64_t ranks_of(const Options& options, const char* name, int64_t least) {
  const int64_t count = options[name];
  if (count >= least && count <= kMostRanks) return count;
  bad_parameters(fmt::format("option {} is {}", name, count),
                 fmt::format("give a number of tp ranks, {} to {}", least, kMostRanks));
}

bool draws_from_streams(const Options& options) {
  const std::string init = options["init"];
  if (init != "master" && init != "own_stream") {
    bad_parameters(fmt::format("option init is '{}'", init), "known are master, own_stream");
  }
  return init == "own_stream";
}

TpLayerSpec layer_on_this_mesh(const Options& options) {
  const TpLayerSpec spec{.kind = tp_layer_kind(options["layer"].get<std::string>()),
                         .cut_features = options["cut_features"],
                         .whole_features = options["whole_features"],
                         .stride = options["stride"],
                         .sequence_parallel = options["sequence_parallel"],
                         .expert_parallel = options["expert_parallel"],
                         .axis = options["axis"]};
  if (spec.axis != "tp" && spec.axis != "cp" && spec.axis != "ulysses") {
    bad_parameters("option axis is '" + spec.axis + "'", "known are tp, cp, ulysses");
  }
  return spec;
}

void check_layer(const LayerParameterOptions& asked) {
  const TpLayerSpec& layer = asked.layer;
  if (asked.embedding() && (layer.stride != 1 || layer.expert_parallel)) {
    bad_parameters("layer: embedding with stride or expert_parallel, which it does not have",
                   "leave them out, or take a column or a row");
  }
  if (layer.expert_parallel && layer.sequence_parallel) {
    bad_parameters(
        "expert_parallel with sequence_parallel: an expert's tokens are dispatched, not cut",
        "leave one of them out");
  }
  if (!asked.stream.empty() && !asked.from_streams) {
    bad_parameters("option stream with init: master, which draws from none",
                   "set init: own_stream");
  }
}

void check_saving(const LayerParameterOptions& asked, int64_t saved_features) {
  if (saved_features < 0 || asked.layer.cut_features < 0) {
    bad_parameters("cut_features or saved_features below 0", "give sizes of 0 or more");
  }
  if (!asked.saves() && (saved_features != 0 || asked.stacked || asked.one_run)) {
    bad_parameters("saved_features, stacked or one_run of a layer that nobody saves",
                   "set saved_tp");
  }
}

}  // namespace

LayerParameterOptions layer_parameter_options(const Options& options) {
  LayerParameterOptions asked;
  asked.saved_tp = ranks_of(options, "saved_tp", 0);
  asked.tp_ranks = ranks_of(options, "tp_ranks", 1);
  asked.layer = layer_on_this_mesh(options);
  asked.samples = options["samples"];
  asked.tokens = options["tokens"];
  asked.from_streams = draws_from_streams(options);
  asked.stream = options["stream"];
  asked.stacked = options["stacked"];
  asked.one_run = options["one_run"];
  check_layer(asked);
  const int64_t saved_features = options["saved_features"];
  check_saving(asked, saved_features);
  asked.drawing = asked.layer;
  if (saved_features != 0) asked.drawing.cut_features = saved_features;
  return asked;
}

void check_on_mesh(const LayerParameterOptions& options, const Mesh& mesh) {
  if (options.saves() && mesh.world_size() % options.saved_tp != 0) {
    throw Error({.kind = ErrorKind::kRefused,
                 .what = fmt::format("a state saved over {} tp ranks, where the world has {}",
                                     options.saved_tp, mesh.world_size()),
                 .fix = "let saved_tp divide the ranks of the mesh"});
  }
  const int64_t ranks = mesh.size(options.layer.axis);
  if (!options.saves() && options.from_streams && options.tp_ranks != ranks) {
    throw Error({.kind = ErrorKind::kRefused,
                 .what = fmt::format("one device draws the parts of {} tp ranks, the mesh has {}",
                                     options.tp_ranks, ranks),
                 .fix = fmt::format("set options.tp_ranks to {}", ranks)});
  }
}

}  // namespace shardproof::sim
