#include "sim/world/rank/inference_rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/elapsed.h"
#include "base/error.h"
#include "model/precision.h"
#include "policy/refit.h"
#include "sim/case/policy_stages.h"
#include "sim/judge/probe/rank_recorder.h"
#include "sim/world/calls/call_trace.h"
#include "sim/world/clock/rank_clock.h"
#include "sim/world/rank/case_inputs.h"
#include "sim/world/rank/refusals.h"
#include "sim/world/rank/stage_probe.h"
#include "tensor/tensor_memory.h"

namespace shardproof::sim::world {
namespace {

std::vector<HeldTensor> wanted_weights(const CaseInputs& inputs, const Mesh& mesh, int64_t rank,
                                       at::TensorOptions options) {
  std::vector<HeldTensor> wanted;
  const Decoder model(inputs.config, inputs.weights);
  for (const ParameterPtr& parameter : model.parameters()) {
    const auto dims = static_cast<int64_t>(parameter->global_shape.size());
    const Layout layout = dims > 1 ? Layout({Cut::chunk(dims - 1, "tp")}) : Layout();
    wanted.push_back(
        {.key = parameter->name,
         .piece = at::zeros(layout.local_shape(parameter->global_shape, mesh, rank), options),
         .global_shape = parameter->global_shape,
         .layout = layout});
  }
  return wanted;
}

void to_world_ranks(judge::RankReport& report, int64_t first) {
  report.rank += first;
  for (judge::ResultRow& row : report.rows) {
    row.rank += first;
    std::vector<int64_t> replicas = row.replicas.ranks();
    for (int64_t& replica : replicas) replica += first;
    row.replicas = std::move(replicas);
  }
  for (judge::Piece& piece : report.pieces) piece.rank += first;
}

}  // namespace

std::unique_ptr<Communicator> refit_group(const CaseSpec& spec, const RankEnv& env,
                                          CallListener* listener) {
  if (spec.parallel.inference_tp == 0) return nullptr;
  std::vector<int64_t> ranks = {0};
  for (int64_t i = 0; i < spec.parallel.inference_tp; ++i) {
    ranks.push_back(spec.parallel.mesh().world_size() + i);
  }
  const auto place = std::find(ranks.begin(), ranks.end(), env.rank);
  SHARDPROOF_ASSERT(place != ranks.end(), "a rank that takes part in a refit");
  return std::make_unique<Communicator>("refit", ranks, place - ranks.begin(),
                                        env.make_backend("refit", ranks), listener);
}

judge::RankReport run_inference_rank(const CaseSpec& spec, const RankEnv& env) {
  const auto start = std::chrono::steady_clock::now();
  const Mesh mesh = spec.parallel.inference_mesh();
  const int64_t first = spec.parallel.mesh().world_size(), rank = env.rank - first;
  const std::shared_ptr<const GoldenRecord> golden = env.inputs->golden(env.golden_fd);
  const bool reads = spec.weights_folder.empty();  // of a folder's weights it needs only the shapes
  const auto inputs = env.inputs->get(spec, reads);
  const TensorMemory memory;
  refuse_unsupported(spec, inputs->config, inputs->batch.size());
  CallTrace trace(env.on_call, env.on_wait);
  CaseSpec judged = spec;
  judged.stages.clear();  // these have the trainer's meshes, to which it does not belong
  judge::RankRecorder recorder(judged, mesh, rank, golden.get(),
                               [&] { return trace.call_count(); });
  WatchedProbe probe(recorder, env.on_tensor, env.clock);
  const at::Device device(env.device);
  const auto options =
      at::TensorOptions().dtype(dtype_of_precision(name_of(spec.precision))).device(device);
  const auto wanted = wanted_weights(*inputs, mesh, rank, options);
  const auto from = refit_group(spec, env, &trace);
  const auto receive = [&](int64_t moment) {
    if (env.on_step) env.on_step(moment);
    {
      const ClockPause pause(env.clock);  // the harness clears what the last refit left
      for (const HeldTensor& held : wanted) held.piece.zero_();
    }
    receive_refit(wanted, mesh, rank, *from, device);
    for (const HeldTensor& held : wanted) {
      if (!probe.listens(Phase::kStep)) break;
      probe.observe({.kind = ObservationKind::kRefit,
                     .name = observed_name(ObservationKind::kRefit, held.key),
                     .phase = Phase::kStep,
                     .step = moment,
                     .tensor = held.piece,
                     .layout = held.layout});
    }
  };
  {
    const ClockRun time(env.clock);
    int64_t moment = 1;
    for (int64_t life = 0; life < spec.lives; ++life) {
      for (const StageSpec& stage : spec.stages) {
        if (stage.kind == StageKind::kRefit) receive(moment);
        moment += moments_of(stage, spec.data.batch_size);
      }
    }
  }
  judge::RankReport report = recorder.finish();
  report.holds = judge::Holds::kRefits;
  to_world_ranks(report, first);
  report.calls = trace.calls();
  report.call_counts = trace.counts();
  report.timeline = env.clock != nullptr ? env.clock->timeline() : trace.timeline();
  report.peak_tensor_bytes = memory.peak_bytes();
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace shardproof::sim::world
