// Makes the sizes of a drawn case agree, so that most drawn cases can run: heads divide by the
// ranks that share them, samples by dp, and no mesh has more ranks than a drawn case may have.
#include <algorithm>
#include <iterator>

#include "sim/case/names.h"
#include "sim/uses/explore/fitted_settings.h"

namespace shardproof::sim::explore {

using nlohmann::json;

namespace {

constexpr const char* kInference = "run.refit.tensor_parallel_size";
constexpr const char* kDataParallel = "parallel.data_parallel";
constexpr const char* kPrecision = "precision";
constexpr const char* kRound = "run.dynamic_batching.sequence_length_round";
constexpr const char* kBudgets[] = {
    "run.sequence_packing.train_mb_tokens", "run.sequence_packing.logprob_mb_tokens",
    "run.dynamic_batching.train_mb_tokens", "run.dynamic_batching.logprob_mb_tokens"};

// The settings of one case, of which `fixed` stay.
class Fit : private FittedSettings {
 public:
  using FittedSettings::FittedSettings;

  void mesh() {
    std::vector<std::string> axes = {kInference};
    for (const TrainingAxis& axis : kTrainingAxes) axes.push_back(path_of_size(axis));
    for (const std::string& axis : axes) {
      while (ranks() > kMostDrawnRanks && size(axis, 1) > 1 && !is_fixed(axis)) {
        set(axis, size(axis, 1) / 2);
      }
    }
    if (has("world.size")) set("world.size", mesh_ranks());
    for (const char* path : {"world.nodes", "world.ranks_per_node"}) {
      if (has(path) && mesh_ranks() % size(path, 1) != 0) set(path, mesh_ranks());
    }
    if (has("world.nodes") && has("world.ranks_per_node")) drop("world.ranks_per_node");
    const char* copies = "parallel.replicate_size";
    const bool hybrid = setting_of(settings_, "parallel.data_parallel") == "hybrid";
    if (has(copies) || hybrid) {
      const auto given = setting_of(settings_, copies).get<int64_t>();
      if (size(kDp, 1) % given != 0) set(copies, size(kDp, 1));
    }
    remainders("world.stragglers", "rank", ranks());
  }

  void model() {
    for (const char* axis : {kUlysses, kTp}) {
      while (has_fixed_heads() && !fits_heads(tp_of_heads(), size(kUlysses, 1)) &&
             size(axis, 1) > 1 && !is_fixed(axis)) {
        set(axis, size(axis, 1) - 1);
      }
    }
    const int64_t tp = tp_of_heads(), shares = tp * size(kUlysses, 1);
    const char *heads = "model.num_attention_heads", *kv = "model.num_key_value_heads";
    if (size(heads, 4) % shares != 0) set(heads, multiple(size(heads, 4), shares));
    // Kv heads that tp or ulysses ranks share are drawn too.
    const bool shared = size(kv, 1) % tp == 0 || tp % size(kv, 1) == 0;
    if (has(kv) && (size(heads, 4) % size(kv, 1) != 0 || !shared)) {
      set(kv, size(heads, 4) % (2 * shares) == 0 ? size(heads, 4) / 2 : size(heads, 4));
    }
    // By default the first 28 layers have no window, and a drawn model has fewer.
    const char* without_window = "model.max_window_layers";
    if (setting_of(settings_, "model.use_sliding_window") == true && !has(without_window)) {
      set(without_window, size("model.num_hidden_layers", 2) / 2);
    }
    const char *width = "model.hidden_size", *head_dim = "model.head_dim";
    if (has(head_dim) && size(head_dim, 8) % 2 != 0) set(head_dim, size(head_dim, 8) + 1);
    const bool even = size(width, 48) % (2 * size(heads, 4)) == 0;
    if (!has(head_dim) && !even) set(head_dim, 6);
  }

  void batch() {
    lengths();
    fill_rows();
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
    scored_tokens();
    budgets();
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

  // The reference's mesh cuts the case's heads and samples too.
  void reference() {
    static constexpr const char *kRefTp = "reference.mesh.tp", *kRefDp = "reference.mesh.dp",
                                *kRefUlysses = "reference.mesh.ulysses";
    const auto smaller = [this](const std::string& axis, const auto& fits) {
      while (!fits() && size(axis, 1) > 1 && !is_fixed(axis)) set(axis, size(axis, 1) - 1);
    };
    const bool pairs = setting_of(settings_, "run.loss.kind") == name_of(LossKind::kPreference);
    const bool uneven = setting_of(settings_, "data.uneven") == true;
    for (const char* axis : {kRefUlysses, kRefTp}) {
      smaller(axis, [&] { return fits_heads(size(kRefTp, 1), size(kRefUlysses, 1)); });
    }
    smaller(kRefDp, [&] { return uneven || samples() % ((pairs ? 2 : 1) * size(kRefDp, 1)) == 0; });
    const auto path_in_reference = [](const TrainingAxis& axis) {
      return std::string("reference.mesh.") + axis.name;
    };
    const auto few_ranks = [&] {
      int64_t ranks = 1;
      for (const TrainingAxis& axis : kTrainingAxes) ranks *= size(path_in_reference(axis), 1);
      return ranks <= kMostDrawnRanks;
    };
    for (const auto& axis : kTrainingAxes) smaller(path_in_reference(axis), few_ranks);
  }

  // Whole or late gradients are of replicated parameters, wider ones not of float16.
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
    if ((!has(place) && !has(late)) || !has("run.stages")) return;
    for (json& stage : settings_["run.stages"]) stage.erase("data_parallel");
  }

  // The golden draws the parts of the plan of the architecture, each of which one rank holds.
  void weights() {
    const char *init = "model.init", *plan = "parallel.custom_parallel_plan",
               *kv = "model.num_key_value_heads", *fused = "run.scoring.fused_norm";
    if (setting_of(settings_, init) == name_of(WeightInit::kOwnStream)) {
      std::vector<std::string> excluded;
      for (const auto& [key, value] : settings_.items()) {
        const bool shared = key == kv && size(kv, 0) % size(kTp, 1) != 0;
        if (shared || key == plan || key.starts_with("reference.")) excluded.push_back(key);
      }
      if (!is_fixed(init) && !excluded.empty()) drop(init);
      for (const std::string& key : excluded) {
        if (is_fixed(init)) drop(key);
      }
    }
    const auto not_both = [&](const char* one, const json& value, bool of_family) {
      if (of_family && setting_of(settings_, one) == value)
        drop(is_fixed(one) ? "model.family" : one);
    };
    not_both(fused, true, family().unit_offset_norm);
    not_both(kPrecision, name_of(Precision::kFloat16), family().extra_heads.value_or(0) > 0);
  }

  // Ranks keep parts of checkpoints' inputs that sequence_parallel does not cut; loaded meshes too.
  void checkpoints() {
    const char *spread = "parallel.tp.spread_checkpoints", *stages = "run.stages",
               *cut = "sequence_parallel";
    if (setting_of(settings_, spread) != true) return;
    if (is_fixed(spread)) {
      drop("parallel.sequence_parallel");
      drop("parallel.tp.gather_buffer");
      if (!has(stages)) return;
      for (json& stage : settings_[stages]) stage.erase(cut);
      return;
    }
    const json list = setting_of(settings_, stages);
    const bool loaded = std::any_of(list.begin(), list.end(),
                                    [&](const json& stage) { return stage.value(cut, false); });
    if (loaded || setting_of(settings_, "parallel.sequence_parallel") == true) drop(spread);
  }

  // A load names a mesh of as many ranks, here that of the case with two axes exchanged.
  void stages() {
    const char* path = "run.stages";
    if (!has(path)) return;
    bool saved = false, refits = false;
    int64_t dp = size(kDp, 1);
    json list = json::array();
    for (json stage : settings_[path]) {
      const auto kind = stage["do"].get<StageKind>();
      const bool loads = kind == StageKind::kLoad;
      if (loads && !saved) list.push_back({{"do", name_of(StageKind::kSave)}});
      saved = saved || loads || (kind == StageKind::kSave && !stage.value("fails", false));
      refits = refits || kind == StageKind::kRefit;
      if (loads) fit_failures(stage, 0);
      if (loads) dp = other_mesh(stage, dp);
      if (kind == StageKind::kTrain) whole_batches(stage, dp);
      list.push_back(stage);
    }
    settings_[path] = list;
    if (refits && size(kInference, 0) == 0) settings_[kInference] = 2;
  }

 private:
  int64_t ranks() const { return mesh_ranks() + size(kInference, 0); }

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

  // A budget of tokens has an effect only where there are as many.
  void fill_rows() {
    constexpr int64_t kMostSamples = 16;
    if (setting_of(settings_, "run.sequence_packing.enabled") != true || has("data.lengths"))
      return;
    const int64_t each = size("data.sequence_length", 16);
    for (const char* path :
         {"run.sequence_packing.train_mb_tokens", "run.sequence_packing.logprob_mb_tokens"}) {
      const int64_t wanted = std::min(kMostSamples, multiple(size(path, 0), each) / each);
      if (samples() < wanted) set("data.batch_size", wanted);
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
    const char* dropped = "data.dropped_samples";
    if (has(dropped) && count == 1) settings_.erase(dropped);
    if (has(dropped)) {  // never the last one (scored_tokens)
      std::set<int64_t> samples;
      for (const json& one : settings_[dropped]) samples.insert(one.get<int64_t>() % (count - 1));
      settings_[dropped] = samples;
    }
    const char* huge = "data.huge_advantage.sample";
    if (size(huge, -1) >= count) set(huge, count - 1);
  }

  // Some token counts: the second one of the last sample.
  void scored_tokens() {
    if (size("data.sequence_length", 16) < 2) settings_["data.sequence_length"] = 2;
    if (has("data.lengths") && settings_["data.lengths"].back() < 2) {
      settings_["data.lengths"].back() = 2;
    }
  }

  // A budget of tokens holds the longest sequence with its padding.
  void budgets() {
    int64_t longest = size("data.sequence_length", 16);
    if (has("data.lengths")) {
      const auto list = settings_["data.lengths"].get<std::vector<int64_t>>();
      longest = std::max(has("data.sequence_length") ? longest : 0,
                         *std::max_element(list.begin(), list.end()));
    }
    const int64_t of_a_sample = mesh_ranks() / mesh_sizes().ranks(Share::kSamples);
    const int64_t row = (of_a_sample > 1 ? 2 * of_a_sample : 1) * size(kRound, 1);
    for (const char* path : kBudgets) {
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
  void whole_batches(json& stage, int64_t dp) {
    const bool pairs = setting_of(settings_, "run.loss.kind") == name_of(LossKind::kPreference);
    const bool uneven = setting_of(settings_, "data.uneven") == true && !pairs;
    const int64_t unit = pairs ? 2 : 1, parts = uneven ? 1 : unit * dp;
    const char* key = "train_global_batch_size";
    const int64_t own = stage.value(key, int64_t{0});
    int64_t global = own > 0 ? own : size("run.train_global_batch_size", samples());
    if (samples() % global != 0 || global % parts != 0) stage[key] = global = samples();
    const int64_t micro = stage.value("train_micro_batch_size", int64_t{0});
    if (micro % unit != 0) stage["train_micro_batch_size"] = micro + 1;
    fit_failures(stage, samples() / global);
  }

  int64_t samples() const {
    return has("data.lengths") ? std::ssize(settings_["data.lengths"]) : size("data.batch_size", 4);
  }

  // Returns its dp ranks.
  int64_t other_mesh(json& stage, int64_t dp) {
    constexpr size_t kAxes = std::size(kTrainingAxes);
    const auto of = [&](const char* name) {
      return std::max<int64_t>(stage.value(name, int64_t{0}), 1);
    };
    int64_t product = 1;
    bool named = false;
    for (const TrainingAxis& axis : kTrainingAxes) {
      named = named || stage.contains(axis.key);
      product *= of(axis.key);
    }
    if (!named) {
      stage.erase("sequence_parallel");
      return dp;
    }
    if (mesh_ranks() % product != 0 || stage.contains("data_parallel_size")) {
      for (size_t i = 0; i < kAxes; ++i) {
        stage[kTrainingAxes[i].key] = size(path_of_size(kTrainingAxes[(i + 1) % kAxes]), 1);
      }
    }
    // Ranks that cannot share its heads hold samples.
    for (const char* axis : {"ulysses_size", "tensor_parallel_size"}) {
      if (!fits_heads(of("tensor_parallel_size"), of("ulysses_size"))) stage[axis] = 1;
    }
    int64_t rest = mesh_ranks();
    for (const TrainingAxis& axis : kTrainingAxes) {
      if (axis.size != &AxisSizes::dp) rest /= of(axis.key);
    }
    if (stage.contains("data_parallel_size")) stage["data_parallel_size"] = rest;
    return rest;
  }

  // 1 where the plan leaves attention whole on every rank: the heads need not be cut then.
  int64_t tp_of_heads() const {
    const json plan = setting_of(settings_, "parallel.custom_parallel_plan");
    const bool whole = plan.is_object() && plan.value("*.self_attn.attention", "") == "Replicate";
    return whole ? 1 : size(kTp, 1);
  }

  // Kv heads that tp or ulysses ranks share fit too.
  bool fits_heads(int64_t tp, int64_t ulysses) const {
    const int64_t heads = size("model.num_attention_heads", 4);
    const int64_t kv = size("model.num_key_value_heads", heads);
    return heads % (tp * ulysses) == 0 && (kv % tp == 0 || tp % kv == 0);
  }
  bool has_fixed_heads() const { return is_fixed("model.num_attention_heads"); }
};

}  // namespace

void fit_sizes(CaseSettings& settings, const std::set<std::string>& fixed,
               const WorkloadOptions& options) {
  Fit fit(settings, fixed);
  fit.mesh();
  if (!is_model_workload(setting_of(settings, "workload"))) {
    fit_workload(settings, fixed, options);
    return fit.mesh();  // it may have fewer ranks now
  }
  fit_pipeline(settings, fixed);
  fit_experts(settings, fixed);
  fit.model();
  fit.weights();
  fit.frozen();
  fit.mesh();  // it may have fewer ranks now
  fit.gradients();
  fit.batch();
  fit.reference();
  fit.stages();
  fit.checkpoints();
  fit_pipeline(settings, fixed);  // of loads and the reference, too
  fit_experts(settings, fixed);
}

}  // namespace shardproof::sim::explore
