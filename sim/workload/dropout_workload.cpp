#include "sim/workload/dropout_workload.h"

#include <ATen/ATen.h>

#include "random/region_dropout.h"
#include "random/rng_seeds.h"
#include "sim/workload/dealt_streams.h"

namespace shardproof::sim {
namespace {

constexpr int64_t kDropoutSeed = 40;

Layout samples_cut() { return Layout({Cut::even(0, "dp")}); }

Layout features_cut() { return Layout({Cut::even(0, "dp"), Cut::even(2, "tp")}); }

Layout tokens_cut(const Options& options) {
  Layout layout = samples_cut();
  if (options["sequence_parallel"]) layout.append(Cut::even(1, "tp"));
  return layout;
}

WorkloadTensors dropout_inputs(Draw& draw, const Options& options) {
  const std::vector<int64_t> shape = {options["samples"], options["tokens"], options["width"]};
  return {{"residual_in", draw.normal(shape), samples_cut()},
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
  const at::Tensor first = streams.keep_alike(shape, p), first_draws = streams.last_draws();
  const at::Tensor again = streams.keep_alike(shape, p);
  out.push_back({"draw.layer", at::cat({first_draws, streams.last_draws()}, 1)});
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
  DrawLog log;
  RngTracker rng(&log);
  Communicator& tp = comm.along("tp");
  seed_streams(rng, kDropoutSeed, {.tp_rank = tp.rank(), .tp_size = tp.size()});
  WorkloadTensors out;
  const auto add = [&](const std::string& place, HeldOverTp held, const Layout& layout) {
    const HeldOverTp from = options["wrong_stream"] == place ? other_kind(held) : held;
    const at::Tensor y = region_dropout(local.at(place + "_in"), options["p"], from, rng, place);
    const Layout of_draws = held == HeldOverTp::kParts ? Layout({Cut::even(0, "tp")}) : Layout();
    out.push_back({"draw." + place, log.tensor(place), of_draws});
    out.push_back({place, y, layout});
  };
  add("residual", HeldOverTp::kAlike, samples_cut());
  add("features", HeldOverTp::kParts, features_cut());
  add("tokens", options["sequence_parallel"] ? HeldOverTp::kParts : HeldOverTp::kAlike,
      tokens_cut(options));
  Dropout layer(options["p"], "layer");
  const at::Tensor x = local.at("residual_in");
  const at::Tensor before = layer.forward(x, rng);
  layer.set_training(false);
  const at::Tensor evaluated = layer.forward(x, rng) * 1;
  layer.set_training(true);
  const at::Tensor after = layer.forward(x, rng);
  out.push_back({"draw.layer", log.tensor("layer")});
  out.push_back({"layer.before", before, samples_cut()});
  out.push_back({"layer.evaluated", evaluated, samples_cut()});
  out.push_back({"layer.after", after, samples_cut()});
  if (options["stray_draw"]) {
    const auto region = rng.fork();
    at::rand({1});  // of the process's default generator
  }
  notes.warnings = rng.warnings();
  return out;
}

}  // namespace

Workload dropout_workload() {
  return {.name = "dropout_regions",
          .about = "dropout inside and outside of tensor parallel regions, and whose draws it is",
          .options = {{"samples", 4},
                      {"tokens", 12},
                      {"width", 24},
                      {"p", 0.3},
                      {"sequence_parallel", false},
                      {"tp_ranks", 1},
                      {"dp_ranks", 1},
                      {"wrong_stream", ""},
                      {"stray_draw", false}},
          .inputs = dropout_inputs,
          .plain = plain_dropouts,
          .sharded_with_notes = sharded_dropouts};
}

}  // namespace shardproof::sim
