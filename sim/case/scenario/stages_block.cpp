// The stages of a policy in a scenario file.
//
//   train       optimizer steps, one for each global batch in the data; one of the scheduler
//   score       the policy's logprobs: the prev_logprobs of later stages
//   reference   the first weights' logprobs: the reference_logprobs of later stages
//   refit       the policy's weights to inference ranks outside of the mesh
//   offload     parameters and optimizer to the host; the next stage that needs them fetches them
//   save, load  a checkpoint; onto another mesh, if the load names one
//   draw        numbers from two of the random streams that the policy keeps
//   export      the policy's weights to a Hugging Face folder, which is read back
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "sim/case/option.h"
#include "sim/case/scenario/blocks.h"

namespace shardproof::sim {
namespace {

using nlohmann::json;

constexpr const char* kStages = "run.stages";

// A key beside `do`, and the stages that take it: those that its row needs.
struct StageKey {
  std::string name;
  std::vector<StageKind> kinds = {};
};

const std::vector<StageKey>& stage_keys() {
  static const std::vector<StageKey> keys = [] {
    const std::string prefix = std::string(kStages) + "[].", kind = prefix + "do";
    std::vector<StageKey> made;
    for (const CaseOption& option : case_options()) {
      if (!option.path.starts_with(prefix) || option.path == kind) continue;
      StageKey& key = made.emplace_back(option.path.substr(prefix.size()));
      for (const Way& way : option.needs) {
        for (const Needed& needed : way) {
          if (needed.path == kind) key.kinds.push_back(needed.value.get<StageKind>());
        }
      }
    }
    return made;
  }();
  return keys;
}

AxisSizes no_sizes() {
  AxisSizes sizes = same_sizes(0);
  for (const ExpertPart& part : kExpertParts) sizes.*part.size = 0;
  return sizes;
}

bool is_given(const json& value) { return value != 0 && value != false && value != ""; }

class StageReader {
 public:
  StageReader(const Settings& settings, const CaseSpec& spec)
      : settings_(settings), spec_(spec), parallel_(spec.parallel) {}

  StageSpec next(const json& record) {
    ++number_;
    StageSpec stage{.kind = record["do"].get<StageKind>()};
    check_keys(stage.kind, record);
    stage.fails = record["fails"];
    if (stage.kind == StageKind::kTrain) set_train(stage, record);
    if (stage.kind == StageKind::kScore || stage.kind == StageKind::kReference) {
      stage.micro_batch_size = size_of(record, "logprob_batch_size", "run.logprob_batch_size", 0);
    }
    if (stage.kind == StageKind::kRefit && parallel_.inference_tp == 0) {
      fail("there are no inference ranks to refit", "set run.refit.tensor_parallel_size");
    }
    if (stage.kind == StageKind::kSave && !stage.fails) saved_ = true;
    if (stage.kind == StageKind::kExport) stage.max_file_bytes = record["max_file_bytes"];
    if (stage.kind == StageKind::kLoad) set_mesh(record);
    stage.parallel = parallel_;
    return stage;
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& fix) const {
    settings_.fail(kStages, fmt::format("stage {}: {}", number_, what), fix);
  }

  void check_keys(StageKind kind, const json& record) const {
    for (const StageKey& key : stage_keys()) {
      const bool fits = std::find(key.kinds.begin(), key.kinds.end(), kind) != key.kinds.end();
      if (fits || !is_given(record[key.name])) continue;
      fail(fmt::format("{} has no {}", kind, key.name),
           fmt::format("remove it, or give it to {}", key.kinds.front()));
    }
  }

  int64_t size_of(const json& record, const char* key, const std::string& path,
                  int64_t otherwise) const {
    if (is_given(record[key])) return record[key].get<int64_t>();
    return settings_.given(path) ? settings_.get<int64_t>(path) : otherwise;
  }

  void set_train(StageSpec& stage, const json& record) const {
    const int64_t samples = spec_.data.batch_size;
    stage.eval_mode = record["eval_mode"];
    if (stage.fails && stage.eval_mode) {
      fail("an evaluation is not to fail", "remove fails or eval_mode");
    }
    stage.global_batch_size =
        size_of(record, "train_global_batch_size", "run.train_global_batch_size", samples);
    stage.micro_batch_size =
        size_of(record, "train_micro_batch_size", "run.train_micro_batch_size", 0);
    set_interruption(stage, record);
    if (samples % stage.global_batch_size == 0) return;
    fail(fmt::format("{} samples do not divide into global batches of {}", samples,
                     stage.global_batch_size),
         "change train_global_batch_size or the data");
  }

  void set_interruption(StageSpec& stage, const json& record) const {
    stage.interrupted_after = record["interrupted_after"];
    if (stage.interrupted_after == 0) return;
    if (stage.eval_mode || stage.fails || spec_.replays_routes) {
      fail("interrupted_after is of stages that train on what remains",
           "remove it, or eval_mode, fails and run.experts.replay");
    }
    const int64_t batches = spec_.data.batch_size / stage.global_batch_size;
    if (stage.interrupted_after < batches) return;
    fail(fmt::format("no global batch is left of {} after {}", batches, stage.interrupted_after),
         fmt::format("write interrupted_after: {} or less, or smaller global batches",
                     std::max<int64_t>(batches - 1, 0)));
  }

  void set_mesh(const json& record) {
    if (!saved_) fail("there is nothing to load yet", "put a save before it");
    AxisSizes given;
    for (const auto& axis : kTrainingAxes) given.*axis.size = record[axis.key];
    for (const auto& part : kExpertParts) given.*part.size = record[part.key];
    const std::string data_parallel = record["data_parallel"];
    if (record["fails"] && (given != no_sizes() || !data_parallel.empty())) {
      fail("a load that fails stays on its mesh", "remove its sizes and data_parallel, or fails");
    }
    if (!data_parallel.empty()) {
      parallel_.data_parallel = enum_of<DataParallelKind>(data_parallel);
    }
    if (given == no_sizes()) {
      if (!record["sequence_parallel"]) return;
      fail("sequence_parallel of a load goes with the sizes of its mesh",
           "name the sizes too, for example tensor_parallel_size: 2");
    }
    for (const auto& axis : kTrainingAxes) {
      parallel_.*axis.size = std::max<int64_t>(given.*axis.size, 1);
    }
    for (const auto& part : kExpertParts) {
      parallel_.*part.size = std::max<int64_t>(given.*part.size, 1);
    }
    parallel_.sequence_parallel = record["sequence_parallel"];
    const int64_t world = spec_.parallel.mesh().world_size();
    if (given.dp == 0) parallel_.dp = std::max<int64_t>(world / parallel_.ranks(), 1);
    const Mesh mesh = read_outside(settings_, kStages, [&] { return parallel_.mesh(); });
    if (mesh.world_size() == world) return;
    fail(fmt::format("the mesh {} has {} ranks, the one before {}", mesh.describe(),
                     mesh.world_size(), world),
         "name a mesh of as many ranks");
  }

  const Settings& settings_;
  const CaseSpec& spec_;
  ParallelSpec parallel_;
  int64_t number_ = 0;
  bool saved_ = false;
};

}  // namespace

bool has_stages(const Settings& settings) {
  return settings.get<std::string>("workload") == name_of(ModelWorkload::kPolicy);
}

void set_stages(const Settings& settings, CaseSpec& spec) {
  if (!has_stages(settings)) {
    for (const char* path : {"run.stages", "run.lives", "run.refit.tensor_parallel_size"}) {
      if (!settings.given(path)) continue;
      settings.fail(path, fmt::format("workload {} has no {}", spec.workload, path),
                    "remove it, or write workload: policy");
    }
    return;
  }
  for (const char* path : {"run.steps", "data.case"}) {
    if (!settings.given(path)) continue;
    settings.fail(path, fmt::format("workload policy has no {}", path),
                  "remove it; run.stages say what happens");
  }
  StageReader reader(settings, spec);
  for (const json& record : settings.value(kStages)) spec.stages.push_back(reader.next(record));
  if (spec.stages.empty()) {
    settings.fail(kStages, "workload policy has no run.stages",
                  "say what happens: [{do: score}, {do: train}]");
  }
}

}  // namespace shardproof::sim
