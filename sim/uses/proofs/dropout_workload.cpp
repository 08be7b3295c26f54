// Workload dropout_regions: which rank draws which mask, over tp and dp.
//
// Three dropouts in sequence: of a tensor that tp ranks hold equally, of features cut over tp, and
// of tokens, cut over tp with sequence_parallel and else held equally. Then a layer trains, is
// evaluated, and trains again. Outputs: "residual", "features", "tokens", "layer.*", and the draws
// of each as "draw.<place>". Sharded: src/random/region_dropout.h, rng_tracker.h. Plain:
// dealt_streams.h.
#include <ATen/ATen.h>

#include <optional>

#include "random/region_dropout.h"
#include "random/rng_seeds.h"
#include "sim/uses/proofs/built_in.h"
#include "sim/uses/proofs/dealt_streams.h"

namespace shardproof::sim::proofs {
namespace {

constexpr int64_t kDropoutSeed = 40;

Layout features_cut() { return Layout({Cut::even(0, "dp"), Cut::even(2, "tp")}); }

Layout tokens_cut(const Options& options) {
  Layout layout = over_dp();
  if (options["sequence_parallel"]) layout.append(Cut::even(1, "tp"));
  return layout;
}

WorkloadTensors dropout_inputs(Draw& draw, const Options& options) {
  const std::vector<int64_t> shape = {options["samples"], options["tokens"], options["width"]};
  return {{"residual_in", draw.normal(shape), over_dp()},
          {"features_in", draw.normal(shape), features_cut()},
          {"tokens_in", draw.normal(shape), tokens_cut(options)}};
}

WorkloadTensors plain_dropouts(const TensorsByName& full, const Options& options) {
  DealtStreams streams(kDropoutSeed, options["tp_ranks"], options["dp_ranks"]);
  const double p = options["p"];
  const at::IntArrayRef shape = full.at("residual_in").sizes();
  WorkloadTensors out;
  const auto add = [&](const std::string& place, const at::Tensor& keep) {
    out.push_back({"draw." + place, streams.last_draws()});
    out.push_back({place, drop_by(full.at(place + "_in"), keep, p)});
  };
  add("residual", streams.keep_alike(shape, p));
  add("features", streams.keep_parts(shape, 2, p));
  add("tokens", options["sequence_parallel"] ? streams.keep_parts(shape, 1, p)
                                             : streams.keep_alike(shape, p));
  const at::Tensor x = full.at("residual_in");
  DealtStreams from_the_start(kDropoutSeed, options["tp_ranks"], options["dp_ranks"]);
  DealtStreams& now = options["rewound"] ? from_the_start : streams;
  if (options["rewound"]) {
    const at::Tensor keep = now.keep_alike(shape, p);
    out.push_back({"draw.residual again", now.last_draws()});
    out.push_back({"residual again", drop_by(x, keep, p)});
  }
  const at::Tensor first = now.keep_alike(shape, p), first_draws = now.last_draws();
  const at::Tensor again = now.keep_alike(shape, p);
  out.push_back({"draw.layer", at::cat({first_draws, now.last_draws()}, 1)});
  out.push_back({"layer.before", drop_by(x, first, p)});
  out.push_back({"layer.evaluated", x * 1});
  out.push_back({"layer.after", drop_by(x, again, p)});
  return out;
}

HeldOverTp other_kind(HeldOverTp held) {
  return held == HeldOverTp::kAlike ? HeldOverTp::kParts : HeldOverTp::kAlike;
}

WorkloadTensors sharded_dropouts(const TensorsByName& local, MeshComm& comm, const Options& options,
                                 WorkloadNotes& notes) {
  check_dealt(options, comm.mesh());
  const int64_t expert_ranks = options["expert_parallel_ranks"];
  DrawLog log;
  RngTracker rng = options["inference"] ? RngTracker::for_inference() : RngTracker(&log);
  Communicator& tp = comm.along("tp");
  seed_streams(rng, kDropoutSeed,
               {.tp_rank = tp.rank(), .tp_size = tp.size(), .ep_size = expert_ranks});
  if (const int64_t extra = options["extra_seed"]; extra >= 0) {
    rng.add("extra-rng", static_cast<uint64_t>(extra));
  }
  const RngStates at_first = rng.states();
  WorkloadTensors out;
  const auto add = [&](const std::string& place, HeldOverTp held, const Layout& layout) {
    const HeldOverTp from = options["wrong_stream"] == place ? other_kind(held) : held;
    const at::Tensor y = region_dropout(local.at(place + "_in"), options["p"], from, rng, place);
    const Layout of_draws = held == HeldOverTp::kParts ? Layout({Cut::even(0, "tp")}) : Layout();
    out.push_back({"draw." + place, log.tensor(place), of_draws});
    out.push_back({place, y, layout});
  };
  add("residual", HeldOverTp::kAlike, over_dp());
  add("features", HeldOverTp::kParts, features_cut());
  add("tokens", options["sequence_parallel"] ? HeldOverTp::kParts : HeldOverTp::kAlike,
      tokens_cut(options));
  const at::Tensor x = local.at("residual_in");
  if (options["rewound"]) {
    rng.set_states(at_first);
    const std::string place = "residual again";
    const at::Tensor y = region_dropout(x, options["p"], HeldOverTp::kAlike, rng, place);
    out.push_back({"draw." + place, log.tensor(place)});
    out.push_back({place, y, over_dp()});
  }
  Dropout layer(options["p"], "layer");
  std::optional<RngTracker::Fork> around_layer;
  if (const std::string name = options["fork"]; !name.empty()) {
    around_layer.emplace(rng.fork(name));
  }
  const at::Tensor before = layer.forward(x, rng);
  layer.set_training(false);
  const at::Tensor evaluated = layer.forward(x, rng) * 1;
  layer.set_training(true);
  const at::Tensor after = layer.forward(x, rng);
  around_layer.reset();
  out.push_back({"draw.layer", log.tensor("layer")});
  out.push_back({"layer.before", before, over_dp()});
  out.push_back({"layer.evaluated", evaluated, over_dp()});
  out.push_back({"layer.after", after, over_dp()});
  if (options["stray_draw"]) {
    const auto region = rng.fork();
    at::rand({1});  // from the process's default generator
  }
  notes.warnings = rng.warnings();
  return out;
}

}  // namespace

Workload dropout_workload() {
  return {.name = "dropout_regions",
          .inputs = dropout_inputs,
          .plain = plain_dropouts,
          .sharded_with_notes = sharded_dropouts};
}

}  // namespace shardproof::sim::proofs
