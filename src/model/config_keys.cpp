#include "model/config_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "model/family.h"

namespace shardproof {
namespace {

using Json = nlohmann::json;

constexpr size_t kMisspeltBy = 2;  // letters, as in case.json

// A key that only families with experts have.
struct ExpertKey {
  const char* name;
  bool of_some = false;  // the families that do not read it do not know it
  bool (*is_read)(const FamilyTraits& family) = [](const FamilyTraits&) { return true; };
};

const std::vector<ExpertKey>& expert_keys() {
  using Family = const FamilyTraits&;
  const auto by_steps = [](Family family) { return family.experts == ExpertLayers::kBySteps; };
  const auto by_sigmoid = [](Family family) { return family.scores == RouterScores::kSigmoid; };
  const auto by_latents = [](Family family) { return family.latent_attention; };
  static const std::vector<ExpertKey> keys = {
      {"num_experts"},
      {"num_local_experts"},
      {"num_experts_per_tok"},
      {"moe_intermediate_size", false,
       [](Family family) { return family.moe_intermediate_size > 0; }},
      {"norm_topk_prob", false,
       [](Family family) { return family.scores != RouterScores::kSoftmaxOfChosen; }},
      {"decoder_sparse_step", false, by_steps},
      {"mlp_only_layers", false, by_steps},
      {"router_jitter_noise"},
      {"output_router_logits"},
      {"qkv_bias"},
      {"shared_expert_intermediate_size"},
      {"swiglu_alpha"},
      {"swiglu_limit"},
      {"n_routed_experts", true, by_sigmoid},
      {"n_shared_experts", true, [](Family family) { return family.shared_by_count; }},
      {"n_group", true, by_sigmoid},
      {"topk_group", true, by_sigmoid},
      {"routed_scaling_factor", true, by_sigmoid},
      {"first_k_dense_replace", true,
       [](Family family) { return family.experts == ExpertLayers::kLast; }},
      {"scoring_func", true, by_sigmoid},
      {"kv_lora_rank", true, by_latents},
      {"q_lora_rank", true, by_latents},
      {"qk_nope_head_dim", true, by_latents},
      {"qk_rope_head_dim", true, by_latents},
      {"v_head_dim", true, by_latents},
      {"rope_interleave", true, by_latents}};
  return keys;
}

// Null: not a key of experts.
const ExpertKey* expert_key(const std::string& name) {
  for (const ExpertKey& key : expert_keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

// The rows of the families that a config names, before anything else of it is read: its two keys
// may contradict each other.
std::vector<const FamilyTraits*> named_families(const Json& config) {
  const Json type = config.value("model_type", Json()),
             named = config.value("architectures", Json());
  const Json first = named.is_array() && !named.empty() ? named[0] : Json();
  std::vector<const FamilyTraits*> families;
  for (const Architecture& known : known_architectures()) {
    if (type != known.model_type && first != known.name) continue;
    families.push_back(&family_traits(known.family));
  }
  return families;
}

template <class Has>
bool names_family(const Json& config, const Has& has) {
  const auto families = named_families(config);
  return std::any_of(families.begin(), families.end(),
                     [&](const FamilyTraits* family) { return has(*family); });
}

bool names_experts(const Json& config) {
  return names_family(
      config, [](const FamilyTraits& family) { return family.experts != ExpertLayers::kNone; });
}

bool names_extra_heads(const Json& config) {
  return names_family(config,
                      [](const FamilyTraits& family) { return family.extra_heads.has_value(); });
}

// Whether the family that a config names has this key.
bool names_key_of_experts(const Json& config, const ExpertKey& key) {
  return key.of_some ? names_family(config, key.is_read) : names_experts(config);
}

const std::vector<std::string>& keys_of_decoders() {
  static const std::vector<std::string> keys = {
      "architectures", "model_type", "text_config",
      // sizes
      "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
      "num_key_value_heads", "head_dim", "max_position_embeddings",
      "original_max_position_embeddings",
      // rotation
      "rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq",
      "partial_rotary_factor",
      // windows
      "sliding_window", "sliding_window_pattern", "use_sliding_window", "max_window_layers",
      "layer_types",
      // functions
      "hidden_act", "hidden_activation", "rms_norm_eps", "query_pre_attn_scalar", "attention_bias",
      "mlp_bias", "tie_word_embeddings", "pad_token_id",
      // refused where they are set
      "attention_dropout", "quantization_config", "attn_logit_softcapping",
      "final_logit_softcapping", "use_bidirectional_attention"};
  return keys;
}

std::vector<std::string> read_keys(const Json& config) {
  std::vector<std::string> keys = keys_of_decoders();
  if (names_extra_heads(config))
    keys.insert(keys.end(), {kExtraHeadsKey, kExtraLossKey, kRepeatedLayerKey});
  for (const ExpertKey& key : expert_keys()) {
    if (names_key_of_experts(config, key)) keys.emplace_back(key.name);
  }
  return keys;
}

// Keys of other Hugging Face models that change what a decoder computes, with the value that
// changes nothing. False counts as 0 and true as 1.
const std::map<std::string, double>& keys_of_other_models() {
  static const std::map<std::string, double> keys = {
      {"activation_sparsity_pattern", 0},
      {"add_cross_attention", 0},
      {"alibi", 0},
      {"attention_chunk_size", 0},
      {"attention_multiplier", 1},
      {"attention_out_bias", 0},
      {"attention_output_bias", 0},
      {"attention_qkv_bias", 0},
      {"attn_temperature_tuning", 0},
      {"clip_qkv", 0},
      {"cross_attention_layers", 0},
      {"embd_pdrop", 0},
      {"embedding_multiplier", 1},
      {"first_k_dense_replace", 0},
      {"hidden_dropout", 0},
      {"hidden_size_per_layer_input", 0},
      {"interleave_moe_layer_step", 0},
      {"kv_lora_rank", 0},
      {"lm_head_bias", 0},
      {"logit_scale", 1},
      {"logits_scaling", 1},
      {"moe_intermediate_size", 0},
      {"n_routed_experts", 0},
      {"n_shared_experts", 0},
      {"no_rope_layer_interval", 0},
      {"no_rope_layers", 0},
      {"num_experts", 0},
      {"num_experts_per_tok", 0},
      {"num_kv_shared_layers", 0},
      {"num_local_experts", 0},
      {kExtraHeadsKey, 0},
      {"parallel_attn", 0},
      {"q_lora_rank", 0},
      {"qk_layernorm", 0},
      {"resid_pdrop", 0},
      {"residual_multiplier", 1},
      {"rope_interleaved", 0},
      {"rotary_pct", 1},
      {"scale_depth", 1},
      {"scale_emb", 1},
      {"shared_expert_intermediate_size", 0},
      {"use_mrope", 0},
      {"use_parallel_residual", 0},
      {"use_qk_norm", 0},
      {"v_head_dim", 0},
  };
  return keys;
}

bool changes_nothing(const Json& value, double neutral) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return value.get<bool>() == (neutral != 0);
  if (value.is_number()) return value.get<double>() == neutral;
  return neutral == 0 && value.is_structured() && value.empty();
}

// The key that `word` is a misspelling of; "" when there is none. Hugging Face begins the names of
// its own fields with "_".
std::string misspelt_key(const std::string& word, const std::vector<std::string>& known) {
  const bool is_known = std::find(known.begin(), known.end(), word) != known.end();
  if (is_known || word.starts_with("_")) return "";
  const std::string near = nearest_name(word, known);
  const bool misspelt =
      std::min(word.size(), near.size()) > 3 && edit_distance(word, near) <= kMisspeltBy;
  return misspelt ? near : "";
}

void refuse_misspelt(const ConfigFields& fields, const std::vector<std::string>& known) {
  for (const auto& [key, value] : fields.object().items()) {
    const std::string near = misspelt_key(key, known);
    if (near.empty() || keys_of_other_models().contains(key)) continue;
    fields.bad({key, near}, fmt::format("'{}' is unknown", fields.name(key)),
               fmt::format("did you mean {}?", near));
  }
}

}  // namespace

void check_config_keys(const ConfigFields& decoder) {
  const bool heads = names_extra_heads(decoder.object());
  refuse_misspelt(decoder, read_keys(decoder.object()));
  for (const auto& [key, neutral] : keys_of_other_models()) {
    const ExpertKey* const of_experts = expert_key(key);
    if (of_experts != nullptr && names_key_of_experts(decoder.object(), *of_experts)) continue;
    if (heads && key == kExtraHeadsKey) continue;
    const auto found = decoder.object().find(key);
    if (found == decoder.object().end() || changes_nothing(*found, neutral)) continue;
    decoder.refuse(
        {key},
        fmt::format("'{}' is not supported: {} computes with it", decoder.name(key),
                    of_experts != nullptr && !of_experts->of_some ? "no family here without experts"
                                                                  : "no family here"),
        "remove it if the model does without it");
  }
}

void check_family_keys(const ConfigFields& config, const FamilyTraits& family) {
  if (config.number_or("attention_dropout", 0) != 0) {
    config.refuse({"attention_dropout"},
                  "attention_dropout is not supported: a judged run must be deterministic",
                  "set attention_dropout to 0");
  }
  if (config.has("quantization_config")) {
    config.refuse({"quantization_config"}, "quantized models are not supported",
                  "give the model in a floating-point dtype");
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (config.has(key)) {
      config.refuse({key}, fmt::format("{} is not supported", key), "set it to null");
    }
  }
  if (config.flag_or("use_bidirectional_attention", false)) {
    config.refuse({"use_bidirectional_attention"},
                  "use_bidirectional_attention is not supported: decoders are trained causally",
                  "set it to false");
  }
  const auto only_elsewhere = [&](const char* key, bool known) {
    if (known || !config.flag_or(key, false)) return;
    config.refuse({key}, fmt::format("{} is not an option of {}", key, family.name),
                  "remove it, or name the family that is meant");
  };
  only_elsewhere("attention_bias", family.attention_bias_option);
  only_elsewhere("mlp_bias", family.mlp_bias_option);
  only_elsewhere("qkv_bias", family.qkv_bias_option || family.experts == ExpertLayers::kNone);
  const auto number_elsewhere = [&](const char* key, bool known) {
    if (known || !config.has(key)) return;
    config.refuse({key}, fmt::format("{} is not an option of {}", key, family.name),
                  "set it to null, or name the family that is meant");
  };
  number_elsewhere("query_pre_attn_scalar", family.own_score_scale);
  number_elsewhere("rope_local_base_freq", family.local_rope);
  number_elsewhere("sliding_window_pattern", family.window == WindowRule::kPattern);
  number_elsewhere("shared_expert_intermediate_size", family.shared_expert_intermediate_size > 0);
  for (const char* key : {"swiglu_alpha", "swiglu_limit"}) {
    number_elsewhere(key, family.clamped_experts);
  }
  const bool windows = family.window != WindowRule::kNone;
  number_elsewhere("sliding_window", windows || !config.flag_or("use_sliding_window", true));
  if (family.experts == ExpertLayers::kBySteps && config.flag_or("use_sliding_window", false)) {
    config.refuse({"use_sliding_window"},
                  fmt::format("sliding windows of {} are not supported", family.name),
                  "set use_sliding_window to false");
  }
  if (config.number_or("partial_rotary_factor", 1) != 1) {
    config.refuse({"partial_rotary_factor"},
                  "a partial_rotary_factor other than 1 is not supported", "remove it");
  }
}

void check_rope_keys(const ConfigFields& rope, const std::vector<std::string>& known) {
  refuse_misspelt(rope, known);
  for (const auto& [key, value] : rope.object().items()) {
    if (value.is_null() || std::find(known.begin(), known.end(), key) != known.end()) continue;
    rope.refuse({key}, fmt::format("'{}' is not supported", rope.name(key)),
                fmt::format("supported: {}", fmt::join(known, ", ")));
  }
}

std::vector<std::string> unread_config_keys(const Json& config) {
  std::vector<std::string> unread;
  const auto add = [&](const Json& object, const std::string& prefix) {
    const std::vector<std::string> keys = read_keys(object);
    const auto families = named_families(object);
    for (const auto& [key, value] : object.items()) {
      const bool known = std::find(keys.begin(), keys.end(), key) != keys.end();
      const ExpertKey* const of_experts = expert_key(key);
      const bool of_others =
          of_experts != nullptr && !families.empty() &&
          std::none_of(families.begin(), families.end(), [&](const FamilyTraits* family) {
            return !family->has_experts() || of_experts->is_read(*family);
          });
      if (!known || of_others) unread.push_back(prefix + key);
    }
  };
  add(config, "");
  const auto text = config.find("text_config");
  if (text != config.end() && text->is_object()) add(*text, "text_config.");
  return unread;
}

}  // namespace shardproof
