// Of a family with experts: its experts, the parts of the mesh that hold them, and what runs beside
// them fit each other.
#include <algorithm>
#include <numeric>

#include "base/expert_choices.h"
#include "base/families.h"
#include "base/training_choices.h"
#include "sim/case/names.h"
#include "sim/uses/explore/fitted_settings.h"

namespace shardproof::sim::explore {

using nlohmann::json;

namespace {

constexpr const char *kConfig = "model.config", *kEp = "parallel.expert_parallel_size",
                     *kEtp = "parallel.expert_tensor_parallel_size",
                     *kSp = "parallel.sequence_parallel", *kWidth = "model.intermediate_size",
                     *kBalance = "run.experts.balance.coefficient",
                     *kZ = "run.experts.z_coefficient", *kForm = "run.experts.balance.form",
                     *kGroups = "run.experts.groups", *kBias = "run.experts.bias.rate",
                     *kCapacity = "run.experts.capacity.factor",
                     *kPolicy = "run.experts.capacity.policy",
                     *kScope = "run.experts.capacity.scope", *kReplay = "run.experts.replay",
                     *kOptimizer = "run.optimizer.name", *kCopies = "parallel.replicate_size";

// Keys of a model that families with experts do not have, or have in config.json alone.
constexpr const char* kOfOthers[] = {"model.mlp_bias",
                                     "model.use_sliding_window",
                                     "model.sliding_window_pattern",
                                     "model.max_window_layers",
                                     "model.query_pre_attn_scalar",
                                     "model.rope_local_base_freq",
                                     "model.layer_types",
                                     "model.hidden_act",
                                     "model.init"};

bool is_policy(const CaseSettings& settings) {
  return setting_of(settings, "workload") == name_of(ModelWorkload::kPolicy);
}
bool is_exact(const CaseSettings& settings) {
  return setting_of(settings, "precision") == name_of(Precision::kFloat64);
}

class ExpertsFit : private FittedSettings {
 public:
  using FittedSettings::FittedSettings;

  bool has_experts() const { return family().has_experts(); }

  void fit() {
    stream();
    sizes();
    reference();
    loads();
    experts();
    precision();
    routers();
    optimizer();
  }

  // Of a family without experts.
  void leave_out() {
    std::vector<std::string> keys;
    for (const auto& [key, value] : settings_.items()) {
      const bool of_experts = key.starts_with("parallel.expert") || key.starts_with("run.experts.");
      const bool of_reference = key.starts_with("reference.mesh.e");
      if (of_experts || of_reference || key == kConfig) keys.push_back(key);
    }
    for (const std::string& key : keys) drop(key);
    if (!has(kStageList)) return;
    for (json& stage : settings_[kStageList]) {
      for (const ExpertPart& part : kExpertParts) stage.erase(part.key);
    }
  }

 private:
  bool chooses_first() const { return family().scores == RouterScores::kSoftmaxOfChosen; }
  void drop_all(std::initializer_list<const char*> paths) {
    for (const char* path : paths) drop(path);
  }
  int64_t ranks_of_layer() const { return mesh_ranks() / mesh_sizes().pp; }

  // Ranks of tp have other tokens, and what this excludes.
  void stream() {
    for (const char* path : kOfOthers) drop(path);
    if (family().window == WindowRule::kNone) drop("model.sliding_window");
    if (!family().attention_bias_option || family().attention_bias) drop("model.attention_bias");
    if (family().latent_attention) drop("model.num_key_value_heads");
    drop("parallel.custom_parallel_plan");
    drop("run.frozen");
    if (is_fixed(kSp) && setting_of(settings_, kSp) == false) set(kTp, 1);
    if (size(kTp, 1) > 1) set(kSp, true);
  }

  std::vector<std::string> keys_of(const std::string& prefix) const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : settings_.items()) {
      if (key.starts_with(prefix)) keys.push_back(key);
    }
    return keys;
  }

  // The other layout is in float64, and its experts are on its own ranks.
  void reference() {
    if (!is_exact(settings_)) {
      for (const std::string& key : keys_of("reference.")) drop(key);
    }
    if (size("reference.mesh.tp", 1) > 1) set("reference.sequence_parallel", true);
    int64_t left = 1;
    for (const TrainingAxis& axis : kTrainingAxes) {
      const bool stages = axis.size == &AxisSizes::pp;
      left *= stages ? 1 : size(std::string("reference.mesh.") + axis.name, 1);
    }
    for (const ExpertPart& part : kExpertParts) {
      const std::string path = std::string("reference.mesh.") + part.name;
      if (!has(path)) continue;
      set(path, std::gcd(size(path, 1), left));
      left /= std::gcd(size(path, 1), left);
    }
  }

  // Sizes whose product divides the ranks of a layer.
  void sizes() {
    if (is_fixed(kEp) || is_fixed(kEtp)) {
      const int64_t wanted =
          (is_fixed(kEp) ? size(kEp, 1) : 1) * (is_fixed(kEtp) ? size(kEtp, 1) : 1);
      if (ranks_of_layer() % wanted != 0) {
        for (const char* axis : {kCp, kUlysses, kTp}) set(axis, 1);
        set(kDp, multiple(size(kDp, 1), wanted));
        if (mesh_ranks() > 16) set(kDp, wanted);
      }
    }
    int64_t left = ranks_of_layer();
    for (const char* path : {kEp, kEtp}) {
      if (is_fixed(path) && left % size(path, 1) == 0) left /= size(path, 1);
    }
    for (const char* path : {kEp, kEtp}) {
      if (is_fixed(path) || size(path, 1) == 1) continue;
      set(path, std::gcd(size(path, 1), left));
      left /= size(path, 1);
    }
    if (setting_of(settings_, "parallel.data_parallel") != "hybrid") return;
    set(kCopies,
        std::gcd(size(kCopies, 1),
                 std::gcd(size(kDp, 1), ranks_of_layer() / (size(kEp, 1) * size(kEtp, 1)))));
  }

  // Of the meshes that a policy loads onto.
  void loads() {
    if (!has(kStageList)) return;
    for (json& stage : settings_[kStageList]) {
      if (stage["do"] != name_of(StageKind::kLoad)) continue;
      const auto of = [&](const char* key) {
        return std::max<int64_t>(stage.value(key, int64_t{0}), 1);
      };
      const bool named = std::any_of(std::begin(kTrainingAxes), std::end(kTrainingAxes),
                                     [&](const auto& axis) { return stage.contains(axis.key); });
      int64_t left = mesh_ranks() / of("pipeline_parallel_size");
      for (const ExpertPart& part : kExpertParts) {
        if (!stage.contains(part.key)) continue;
        const int64_t fitted = std::gcd(of(part.key), left);
        left /= fitted;
        stage[part.key] = fitted;
        const bool copies = setting_of(settings_, "parallel.data_parallel") == "hybrid";
        if (!named || copies) stage.erase(part.key);
      }
      if (of("tensor_parallel_size") > 1) stage["sequence_parallel"] = true;
    }
  }

  // Multiples of all sizes of a part, on the case's mesh, the reference's and those of loads.
  int64_t all_sizes(const char* path, const char* of_reference) const {
    int64_t all = std::lcm(size(path, 1), size(of_reference, 1));
    if (!has(kStageList)) return all;
    const std::string name = std::string(path).substr(std::string(path).find('.') + 1);
    for (const json& stage : settings_[kStageList]) {
      all = std::lcm(all, std::max<int64_t>(stage.value(name, int64_t{1}), 1));
    }
    return all;
  }

  // The numbers of the drawn map, which may be of another family, under the family's names.
  void experts() {
    const json drawn = has(kConfig) ? settings_[kConfig] : json::object();
    const auto given = [&](std::initializer_list<const char*> names, int64_t otherwise) {
      for (const char* name : names) {
        if (drawn.contains(name) && drawn[name].is_number()) return drawn[name].get<int64_t>();
      }
      return otherwise;
    };
    const int64_t ep = all_sizes(kEp, "reference.mesh.ep");
    const int64_t etp = all_sizes(kEtp, "reference.mesh.etp");
    const int64_t tp = all_sizes(kTp, "reference.mesh.tp");
    int64_t count = given({"num_experts", "num_local_experts", "n_routed_experts"}, 6);
    int64_t chosen = given({"num_experts_per_tok"}, 2);
    const int64_t width = multiple(given({"moe_intermediate_size"}, 8), std::lcm(etp, tp));
    json config = json::object();
    const auto keep = [&](std::initializer_list<const char*> names) {
      for (const char* name : names) {
        if (drawn.contains(name)) config[name] = drawn[name];
      }
    };
    count = multiple(count, ep);
    if (family().scores == RouterScores::kSigmoid) {
      const int64_t groups = given({"n_group"}, 2);
      const int64_t best = std::min(given({"topk_group"}, 1), groups);
      count = multiple(count, std::lcm(ep, 2 * groups));
      chosen = groups > 1 ? 2 * best : std::min(chosen, count);
      config = {{"n_group", groups}, {"topk_group", best}};
      keep({"routed_scaling_factor"});
    }
    if (chooses_first()) {
      chosen = std::max<int64_t>(chosen, 2);
      count = multiple(std::max(count, chosen), ep);
    } else {
      keep({"norm_topk_prob"});
    }
    switch (family().experts) {
      case ExpertLayers::kNone:
        break;
      case ExpertLayers::kAll:
        config["num_local_experts"] = count;
        break;
      case ExpertLayers::kBySteps:
        config["num_experts"] = count;
        config["decoder_sparse_step"] =
            std::min(given({"decoder_sparse_step"}, 1), size(kLayers, 2));
        if (size(kLayers, 2) > 2) keep({"mlp_only_layers"});
        break;
      case ExpertLayers::kLast:
        config["n_routed_experts"] = count;
        config["first_k_dense_replace"] =
            std::min(given({"first_k_dense_replace"}, 0), size(kLayers, 2) - 1);
        break;
    }
    if (family().moe_intermediate_size > 0) {
      config["moe_intermediate_size"] = width;
    } else {
      set(kWidth, multiple(size(kWidth, 12), std::lcm(etp, tp)));
    }
    if (family().shared_by_count) config["n_shared_experts"] = 1;
    if (family().shared_expert_intermediate_size > 0) {
      config["shared_expert_intermediate_size"] =
          multiple(given({"shared_expert_intermediate_size"}, 10), tp);
    }
    if (family().clamped_experts) keep({"swiglu_limit", "swiglu_alpha"});
    if (family().latent_attention) {
      config.update({{"q_lora_rank", 10},
                     {"kv_lora_rank", 7},
                     {"qk_nope_head_dim", 5},
                     {"qk_rope_head_dim", 4},
                     {"v_head_dim", 6}});
      keep({"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"});
    }
    set(kWidth, multiple(size(kWidth, 96), tp));
    config["num_experts_per_tok"] = std::min(chosen, count);
    settings_[kConfig] = config;
  }

  // Below float64 ranks take the experts of one device, which the stages of a policy cannot.
  void precision() {
    const char* heads = "model.num_nextn_predict_layers";
    if (setting_of(settings_, "precision") == "float16" &&
        !setting_of(settings_, heads).is_null()) {
      drop(is_fixed(heads) ? "precision" : heads);  // refused together
    }
    if (is_exact(settings_)) return;
    if (is_policy(settings_)) drop("precision");
    if (is_exact(settings_)) return;
    if (is_policy(settings_)) return drop("model.family");  // ranks refuse both together
    drop_all({"record_activations", "sample_rows", kBias, "run.experts.bias.centered"});
    if (has(kCapacity)) set(kPolicy, name_of(DropPolicy::kPosition));
  }

  void routers() {
    const std::vector<std::string> given = keys_of("run.experts.");
    const bool trains = setting_of(settings_, "workload") != name_of(ModelWorkload::kLogprobs);
    for (const std::string& key : given) {
      if (!trains) drop(key);
    }
    if (chooses_first()) drop_all({kBias, "run.experts.bias.centered"});
    if (!is_policy(settings_)) drop(kReplay);
    if (setting_of(settings_, kReplay) == true) {
      for (const char* key : {"factor", "minimum", "policy", "scope"}) {
        drop(std::string("run.experts.capacity.") + key);
      }
    }
    const bool deals = setting_of(settings_, "run.sequence_packing.enabled") == true ||
                       setting_of(settings_, "run.dynamic_batching.enabled") == true;
    if (is_policy(settings_) || deals || !keys_of("reference.").empty()) {
      set(kScope, name_of(CapacityScope::kSequence));
      if (has(kBalance) || has(kZ)) set(kGroups, name_of(LossGroups::kSequence));
    }
    const bool global = setting_of(settings_, kGroups) == name_of(LossGroups::kGlobal);
    if (global || in_stages()) drop(kForm);
  }

  // Muon needs gate and up one behind the other, and not column by column.
  void optimizer() {
    if (!family().clamped_experts || setting_of(settings_, kOptimizer) != "Muon") return;
    for (const std::string& key : keys_of("run.optimizer.")) drop(key);
  }
};

}  // namespace

bool is_refused(const CaseSettings& settings) {
  const FamilyTraits* family = find_family(setting_of(settings, "model.family"));
  return family != nullptr && family->has_experts() && is_policy(settings) && !is_exact(settings);
}

void fit_experts(CaseSettings& settings, const std::set<std::string>& fixed) {
  ExpertsFit fit(settings, fixed);
  if (fit.has_experts()) {
    fit.fit();
  } else {
    fit.leave_out();
  }
}

}  // namespace shardproof::sim::explore
