#include "model/config_experts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof {
namespace {

void refuse_options(const ConfigFields& config) {
  if (config.number_or("router_jitter_noise", 0) != 0) {
    config.refuse({"router_jitter_noise"},
                  "router_jitter_noise is not supported: a judged run must be deterministic",
                  "set it to 0");
  }
  // Both are a case's to read: they say which side loss a training has.
  config.flag_or("output_router_logits", false);
  if (config.number_or("router_aux_loss_coef", 0) < 0) {
    config.bad({"router_aux_loss_coef"},
               fmt::format("router_aux_loss_coef={} rewards experts that are not balanced",
                           config.number_or("router_aux_loss_coef", 0)),
               "set it to 0 or more");
  }
}

// transformers 5 writes num_local_experts for every family, 4 wrote num_experts for qwen3_moe.
int64_t read_num_experts(const ConfigFields& config, const FamilyTraits& family) {
  const bool routed = family.scores == RouterScores::kSigmoid && config.has("n_routed_experts");
  const int64_t local =
      config.size_or(routed ? "n_routed_experts" : "num_local_experts", family.num_experts);
  const int64_t experts = config.size_or("num_experts", local);
  if (config.has("num_local_experts") && experts != local) {
    config.bad({"num_experts", "num_local_experts"},
               fmt::format("num_experts={}, but num_local_experts={}", experts, local),
               "keep the one that is meant");
  }
  return experts;
}

std::vector<int64_t> read_dense_layers(const ConfigFields& config) {
  const nlohmann::json* list = config.find("mlp_only_layers");
  if (list == nullptr) return {};
  const auto is_layer = [](const nlohmann::json& value) { return value.is_number_integer(); };
  if (!list->is_array() || !std::all_of(list->begin(), list->end(), is_layer)) {
    config.wrong_type("mlp_only_layers", *list, "a list of layer numbers");
  }
  return list->get<std::vector<int64_t>>();
}

void read_group_rule(const ConfigFields& config, RouterRule& rule) {
  rule.normalized = config.flag_or("norm_topk_prob", true);
  rule.scaling = config.positive_or("routed_scaling_factor", 2.5);
  rule.num_groups = config.size_or("n_group", 8);
  rule.chosen_groups = config.size_or("topk_group", 4);
  rule.selection_bias = true;
  if (config.text_or("scoring_func", "sigmoid") != "sigmoid") {
    config.refuse(
        {"scoring_func"},
        fmt::format("scoring_func \"{}\" is not supported", config.text_or("scoring_func", "")),
        "supported: sigmoid");
  }
}

}  // namespace

void read_experts(const ConfigFields& config, ModelConfig& model) {
  const FamilyTraits& family = model.traits();
  if (!family.has_experts()) return;
  refuse_options(config);
  model.router = {.num_experts = read_num_experts(config, family),
                  .num_chosen = config.size_or("num_experts_per_tok", family.num_experts_per_tok),
                  .scores = family.scores};
  if (family.scores == RouterScores::kSoftmaxOfAll) {
    model.router.normalized = config.flag_or("norm_topk_prob", false);
  }
  if (family.scores == RouterScores::kSigmoid) read_group_rule(config, model.router);
  try {
    check_router_rule(model.router);
  } catch (const Error& error) {
    const std::vector<std::string> keys = {
        "num_experts_per_tok", "num_experts", "num_local_experts",
        "n_routed_experts",    "n_group",     "topk_group"};
    if (error.kind() == ErrorKind::kRefused) config.refuse(keys, error.fact(), error.fix());
    config.bad(keys, error.fact(), error.fix());
  }
  model.expert_width = family.moe_intermediate_size > 0
                           ? config.size_or("moe_intermediate_size", family.moe_intermediate_size)
                           : model.intermediate_size;
  if (family.shared_by_count) {
    model.shared_width = model.expert_width * config.size_or("n_shared_experts", 1);
  }
  if (family.shared_expert_intermediate_size > 0) {
    model.shared_width =
        config.size_or("shared_expert_intermediate_size", family.shared_expert_intermediate_size);
  }
  const bool by_steps = family.experts == ExpertLayers::kBySteps;
  const bool last = family.experts == ExpertLayers::kLast;
  const int64_t step = by_steps ? config.size_or("decoder_sparse_step", 1) : 1;
  const int64_t first = last ? config.integer_or("first_k_dense_replace", 3) : 0;
  const std::vector<int64_t> dense = by_steps ? read_dense_layers(config) : std::vector<int64_t>();
  for (int64_t layer = 0; layer < model.layers_with_heads(); ++layer) {
    const int64_t own = std::min(layer, model.layers_with_weights() - 1);
    const bool is_dense = std::find(dense.begin(), dense.end(), own) != dense.end();
    model.expert_layers.push_back(!is_dense && own >= first && (own + 1) % step == 0);
  }
}

void add_selection_bias(ModelConfig& model) {
  if (!model.has_experts()) return;
  model.router.selection_bias = true;
  check_router_rule(model.router);
}

bool is_added_bias(const ModelConfig& model, const std::string& name) {
  return model.traits().scores != RouterScores::kSigmoid &&
         name.ends_with(".e_score_correction_bias");
}

}  // namespace shardproof
