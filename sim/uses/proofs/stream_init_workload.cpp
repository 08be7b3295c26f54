// Workload: a weight whose parts the ranks draw from separate streams.
//
// The judge compares the weight, assembled from the ranks' parts, and the draws. One device draws
// the part of each rank from the stream of that rank's seed. Sharded:
// src/parallel/tp/stream_init.h. With another axis than tp the weight has a group of its own, as
// experts do, and tp ranks hold copies.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include "base/error.h"
#include "observe/draw_log.h"
#include "parallel/tp/stream_init.h"
#include "random/rng_seeds.h"
#include "sim/uses/proofs/built_in.h"
#include "tensor/shard.h"

namespace shardproof::sim::proofs {
namespace {

constexpr int64_t kWeightSeed = 90;
constexpr double kWeightStd = 0.5;
const std::vector<int64_t> kShape = {24, 5};

Layout weight_layout(const Options& options) { return Layout({Cut::even(0, options["axis"])}); }

WorkloadTensors no_inputs(Draw&, const Options&) { return {}; }

WorkloadTensors plainly_drawn(const TensorsByName&, const Options& options) {
  const std::string axis = options["axis"];
  const Mesh mesh({{axis, options["ranks"]}});
  const Layout layout = weight_layout(options);
  const bool expert = options["expert"];
  std::vector<at::Tensor> parts, draws;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const auto shape = layout.local_shape(kShape, mesh, rank);
    const auto seed = static_cast<uint64_t>(kWeightSeed + (expert ? 1024 : 2718) + rank);
    const at::Generator generator = at::detail::createCPUGenerator(seed);
    draws.push_back(draw_tensor({{.place = "",
                                  .stream = expert ? "expert-parallel-rng" : "model-parallel-rng",
                                  .seed = seed,
                                  .offset = 0,
                                  .count = c10::multiply_integers(shape),
                                  .state = generator_digest(generator)}}));
    parts.push_back(at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble)) *
                    kWeightStd);
  }
  return {{"draw.weight", at::cat(draws)}, {"weight", reassemble(parts, kShape, layout, mesh)}};
}

WorkloadTensors sharded_draw(const TensorsByName&, MeshComm& comm, const Options& options) {
  const std::string axis = options["axis"];
  const Communicator& group = comm.along(axis);
  if (group.size() != options["ranks"].get<int64_t>()) {
    throw_refused(fmt::format("one device draws the parts of {} ranks, axis {} has {}",
                              options["ranks"].get<int64_t>(), axis, group.size()),
                  fmt::format("set options.ranks to {}", group.size()));
  }
  DrawLog log;
  RngTracker rng(&log);
  seed_streams(rng, kWeightSeed,
               {.tp_rank = group.rank(),
                .tp_size = group.size(),
                .etp_rank = group.rank(),
                .etp_size = group.size()});
  const std::string own = options["expert"] ? kExpertParallelRng : kModelParallelRng;
  const std::string named = options["stream"];
  const Layout layout = weight_layout(options);
  const at::Tensor weight =
      drawn_in_stream(rng, named.empty() ? own : named,
                      layout.local_shape(kShape, comm.mesh(), comm.rank()), kWeightStd, "weight");
  return {{"draw.weight", log.tensor("weight"), Layout({Cut::even(0, axis)})},
          {"weight", weight, layout}};
}

}  // namespace

Workload stream_init_workload() {
  return {
      .name = "stream_init", .inputs = no_inputs, .plain = plainly_drawn, .sharded = sharded_draw};
}

}  // namespace shardproof::sim::proofs
