#include "sim/explore/fit.h"

#include <algorithm>
#include <array>
#include <map>

#include "sim/case/names.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

constexpr const char* kDp = "parallel.data_parallel_size";
constexpr const char* kCp = "parallel.context_parallel_size";
constexpr const char* kUlysses = "parallel.ulysses_size";
constexpr const char* kTp = "parallel.tensor_parallel_size";
constexpr const char* kDataParallel = "parallel.data_parallel";
constexpr const char* kPrecision = "precision";
constexpr const char* kInference = "run.refit.tensor_parallel_size";

// Rounded up.
int64_t multiple(int64_t size, int64_t of) { return (size + of - 1) / of * of; }

// An option of a registered workload that has no meaning beside a value of another, so that its
// ranks refuse it.
struct Excludes {
  const char *workload, *option, *value, *other;
};
constexpr Excludes kExcludes[] = {
    {"context_logprob", "rows", "\"indexed\"", "contiguous"},
};

// The settings of one case, of which `fixed` stay.
class Fit {
 public:
  Fit(CaseSettings& settings, const std::set<std::string>& fixed)
      : settings_(settings), fixed_(fixed) {}

  void mesh() {
    for (const char* axis : {kInference, kDp, kUlysses, kCp, kTp}) {
      while (ranks() > kMostDrawnRanks && size(axis, 1) > 1 && !is_fixed(axis)) {
        set(axis, size(axis, 1) / 2);
      }
    }
    if (has("world.size")) set("world.size", mesh_ranks());
    for (const char* path : {"world.nodes", "world.ranks_per_node"}) {
      if (has(path) && mesh_ranks() % size(path, 1) != 0) set(path, mesh_ranks());
    }
    if (has("world.nodes") && has("world.ranks_per_node")) drop("world.ranks_per_node");
    if (has("parallel.replicate_size") && size(kDp, 1) % size("parallel.replicate_size", 1) != 0) {
      set("parallel.replicate_size", size(kDp, 1));
    }
    remainders("world.stragglers", "rank", ranks());
  }

  void model() {
    const int64_t shares = size(kTp, 1) * size(kUlysses, 1);
    const char *heads = "model.num_attention_heads", *kv = "model.num_key_value_heads";
    if (size(heads, 4) % shares != 0) set(heads, multiple(size(heads, 4), shares));
    // Kv heads that tp or ulysses ranks share are drawn too.
    const int64_t tp = size(kTp, 1);
    const bool shared = size(kv, 1) % tp == 0 || tp % size(kv, 1) == 0;
    if (has(kv) && (size(heads, 4) % size(kv, 1) != 0 || !shared)) {
      set(kv, size(heads, 4) % (2 * shares) == 0 ? size(heads, 4) / 2 : size(heads, 4));
    }
    const char *width = "model.hidden_size", *head_dim = "model.head_dim";
    if (has(head_dim) && size(head_dim, 8) % 2 != 0) set(head_dim, size(head_dim, 8) + 1);
    const bool even = size(width, 48) % (2 * size(heads, 4)) == 0;
    if (!has(head_dim) && !even) set(head_dim, 6);
    const char* mlp = "model.intermediate_size";
    if (size(mlp, 96) % size(kTp, 1) != 0) set(mlp, multiple(size(mlp, 96), size(kTp, 1)));
  }

  void batch() {
    lengths();
    const bool policy = setting_of(settings_, "workload") == name_of(ModelWorkload::kPolicy);
    const char *samples = "data.batch_size", *global = "run.train_global_batch_size";
    if (has("data.lengths")) drop(samples);
    int64_t count = this->samples();
    const bool pairs = setting_of(settings_, "run.loss.kind") == name_of(LossKind::kPreference);
    const int64_t parts = pairs ? 2 * size(kDp, 1) : size(kDp, 1);
    const bool uneven = setting_of(settings_, "data.uneven") == true && !pairs;
    if (count % parts != 0 && !uneven) {
      drop("data.lengths");
      set(samples, multiple(count, parts));
      count = size(samples, 4);
    }
    if (has(global) && (policy ? count % size(global, 1) != 0 : true)) {
      set(global, count);
      if (!policy) drop(samples);
    }
    if (pairs) pair_samples();
    sample_numbers(count);
    budgets();
  }

  // Options of registered workloads that repeat the sizes of the mesh.
  void workload() {
    if (!has("options")) return;
    json& options = settings_["options"];
    const std::string axis = options.value("axis", "tp");
    const std::map<std::string, const char*> axes = {
        {"tp", kTp}, {"dp", kDp}, {"cp", kCp}, {"ulysses", kUlysses}};
    const std::map<std::string, std::string> repeats = {
        {"ranks", axis}, {"tp_ranks", "tp"}, {"dp_ranks", "dp"}};
    for (const auto& [name, of] : repeats) {
      if (options.contains(name) && axes.count(of) != 0) options[name] = size(axes.at(of), 1);
    }
    for (const Excludes& one : kExcludes) {
      if (setting_of(settings_, "workload") != one.workload || !options.contains(one.option) ||
          options[one.option] != json::parse(one.value)) {
        continue;
      }
      options.erase(one.other);
    }
    if (setting_of(settings_, "workload") == "refit") receivers(options);
  }

  // A model with the parameters that the patterns name, or else patterns that it has.
  void frozen() {
    const char *path = "run.frozen", *biases = "model.attention_bias",
               *tied = "model.tie_word_embeddings";
    if (!has(path)) return;
    json kept = json::array();
    for (const std::string pattern : settings_[path]) {
      const bool bias = pattern.ends_with(".bias"), head = pattern == "lm_head.weight";
      if (is_fixed(path) && bias && !is_fixed(biases)) settings_[biases] = true;
      if (is_fixed(path) && head) drop(tied);
      const bool absent = (bias && setting_of(settings_, biases) != true) ||
                          (head && setting_of(settings_, tied) == true);
      if (!absent) kept.push_back(pattern);
    }
    if (is_fixed(path)) return;
    settings_[path] = kept;
    if (kept.empty()) drop(path);
  }

  // Gradients that are added up whole or computed late belong to replicated parameters, and wider
  // ones than the forward's to a precision other than float16.
  void gradients() {
    const char *place = "run.gradients", *late = "parallel.tp.deferred_wgrad";
    const auto exclude = [&](const char* path, bool excluded) {
      if (!excluded) return;
      for (const char* key : {place, late}) {
        if (path == kPrecision && key == late) continue;
        if (is_fixed(key)) drop(path);
        drop(key);
      }
    };
    exclude(kPrecision, setting_of(settings_, kPrecision) == name_of(Precision::kFloat16));
    const json data = setting_of(settings_, kDataParallel);
    exclude(kDataParallel, !data.is_null() && data != name_of(DataParallelKind::kReplicate));
    if (!has(place) && !has(late)) return;
    if (!has("run.stages")) return;
    for (json& stage : settings_["run.stages"]) stage.erase("data_parallel");
  }

  // A load names a mesh of as many ranks, here that of the case with two axes exchanged.
  void stages() {
    const char* path = "run.stages";
    if (!has(path)) return;
    bool saved = false, refits = false;
    json list = json::array();
    for (json stage : settings_[path]) {
      const auto kind = stage["do"].get<StageKind>();
      const bool loads = kind == StageKind::kLoad;
      if (loads && !saved) list.push_back({{"do", name_of(StageKind::kSave)}});
      saved = saved || loads || kind == StageKind::kSave;
      refits = refits || kind == StageKind::kRefit;
      if (loads) other_mesh(stage);
      if (stage.value("eval_mode", false)) stage.erase("fails");
      whole_batches(stage);
      list.push_back(stage);
    }
    settings_[path] = list;
    if (refits && size(kInference, 0) == 0) settings_[kInference] = 2;
  }

 private:
  bool is_fixed(const std::string& path) const { return fixed_.count(path) != 0; }
  bool has(const char* path) const {
    return settings_.contains(path) && !settings_[path].is_null();
  }
  int64_t size(const char* path, int64_t otherwise) const {
    return has(path) ? settings_[path].get<int64_t>() : otherwise;
  }
  void set(const char* path, int64_t value) {
    if (!is_fixed(path)) settings_[path] = value;
  }
  void drop(const char* path) {
    if (!is_fixed(path)) settings_.erase(path);
  }
  int64_t mesh_ranks() const {
    return size(kDp, 1) * size(kCp, 1) * size(kUlysses, 1) * size(kTp, 1);
  }
  int64_t ranks() const { return mesh_ranks() + size(kInference, 0); }

  // A world that holds a trainer and its receivers beside each other.
  void receivers(json& options) {
    for (const char* axis : {kCp, kUlysses}) drop(axis);
    const int64_t tp = size(kTp, 1);
    for (const char* smaller : {"replicas", "trainer_cp", "trainer_tp", "trainer_dp"}) {
      const auto of = [&](const char* name, int64_t otherwise) {
        return options.value(name, otherwise);
      };
      const int64_t ranks =
          of("trainer_dp", 2) * of("trainer_cp", 1) * of("trainer_tp", 2) + of("replicas", 1) * tp;
      const int64_t dp = multiple(ranks, tp) / tp;
      if (dp * tp <= kMostDrawnRanks) {
        if (size(kDp, 1) < dp) set(kDp, dp);
        return;
      }
      options[smaller] = 1;
    }
  }

  void remainders(const char* list, const char* name, int64_t count) {
    if (!has(list)) return;
    for (json& record : settings_[list]) {
      if (record.contains(name)) record[name] = record[name].get<int64_t>() % count;
    }
  }

  void lengths() {
    if (!has("data.lengths") || !has("data.sequence_length")) return;
    if (is_fixed("data.lengths") && !is_fixed("data.sequence_length")) {
      settings_.erase("data.sequence_length");
      return;
    }
    for (json& length : settings_["data.lengths"]) {
      length = std::min(length.get<int64_t>(), size("data.sequence_length", 16));
    }
  }

  void pair_samples() {
    for (const char* path : {"run.sequence_packing.enabled", "run.dynamic_batching.enabled"}) {
      drop(path);
    }
    const char* micro = "run.train_micro_batch_size";
    if (has(micro) && size(micro, 2) % 2 != 0) set(micro, size(micro, 2) + 1);
  }

  void sample_numbers(int64_t count) {
    if (has("data.dropped_samples")) {
      std::set<int64_t> samples;
      for (const json& one : settings_["data.dropped_samples"]) {
        samples.insert(one.get<int64_t>() % count);
      }
      settings_["data.dropped_samples"] = samples;
    }
    const char* huge = "data.huge_advantage.sample";
    if (size(huge, -1) >= count) set(huge, count - 1);
  }

  // A budget of tokens holds the longest sequence with its padding.
  void budgets() {
    int64_t longest = size("data.sequence_length", 16);
    if (has("data.lengths")) {
      const auto list = settings_["data.lengths"].get<std::vector<int64_t>>();
      longest = std::max(has("data.sequence_length") ? longest : 0,
                         *std::max_element(list.begin(), list.end()));
    }
    const char* round = "run.dynamic_batching.sequence_length_round";
    const int64_t row = 2 * size(kCp, 1) * size(kUlysses, 1) * size(kTp, 1) * size(round, 1);
    for (const char* path :
         {"run.sequence_packing.train_mb_tokens", "run.sequence_packing.logprob_mb_tokens",
          "run.dynamic_batching.train_mb_tokens", "run.dynamic_batching.logprob_mb_tokens"}) {
      if (has(path) && size(path, 1) < multiple(longest, row)) {
        settings_[path] = multiple(longest, row) + size(path, 1);
      }
    }
    const bool by_tokens = setting_of(settings_, "run.sequence_packing.enabled") == true ||
                           setting_of(settings_, "run.dynamic_batching.enabled") == true;
    const bool scores = setting_of(settings_, "workload") == name_of(ModelWorkload::kLogprobs);
    if (by_tokens) drop(scores ? "run.logprob_batch_size" : "run.train_micro_batch_size");
  }

  // Of a training stage: its global batches divide the batch, and hold whole pairs on each dp rank.
  void whole_batches(json& stage) {
    const bool pairs = setting_of(settings_, "run.loss.kind") == name_of(LossKind::kPreference);
    const int64_t unit = pairs ? 2 : 1, parts = unit * size(kDp, 1);
    const int64_t global = stage.value("train_global_batch_size", int64_t{0});
    if (global > 0 && (samples() % global != 0 || global % parts != 0)) {
      stage["train_global_batch_size"] = samples();
    }
    const int64_t micro = stage.value("train_micro_batch_size", int64_t{0});
    if (micro % unit != 0) stage["train_micro_batch_size"] = micro + 1;
  }

  int64_t samples() const {
    return has("data.lengths") ? std::ssize(settings_["data.lengths"]) : size("data.batch_size", 4);
  }

  void other_mesh(json& stage) {
    static constexpr std::array<std::pair<const char*, const char*>, 4> kAxes = {
        {{"data_parallel_size", kDp},
         {"context_parallel_size", kCp},
         {"ulysses_size", kUlysses},
         {"tensor_parallel_size", kTp}}};
    int64_t product = 1;
    bool named = false;
    for (const auto& [name, path] : kAxes) {
      named = named || stage.contains(name);
      product *= std::max<int64_t>(stage.value(name, int64_t{0}), 1);
    }
    if (!named) {
      stage.erase("sequence_parallel");
      return;
    }
    if (mesh_ranks() % product == 0 && !stage.contains("data_parallel_size")) return;
    for (size_t i = 0; i < kAxes.size(); ++i) {
      stage[kAxes[i].first] = size(kAxes[(i + 1) % kAxes.size()].second, 1);
    }
  }

  CaseSettings& settings_;
  const std::set<std::string>& fixed_;
};

}  // namespace

void fit_sizes(CaseSettings& settings, const std::set<std::string>& fixed) {
  Fit fit(settings, fixed);
  fit.mesh();
  if (!is_model_workload(setting_of(settings, "workload"))) {
    fit.workload();
    return;
  }
  fit.model();
  fit.frozen();
  fit.gradients();
  fit.batch();
  fit.stages();
}

}  // namespace shardproof::sim
