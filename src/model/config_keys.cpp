#include "model/config_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/error.h"

namespace shardproof {
namespace {

using Json = nlohmann::json;

constexpr size_t kMisspeltBy = 2;  // letters, as in case.json

// The rows of the families that a config names, before anything else of it is read: its two keys
// may contradict each other. If it names none, the first family's.
std::vector<const FamilyTraits*> named_families(const Json& config) {
  const Json type = config.value("model_type", Json()),
             named = config.value("architectures", Json());
  const Json first = named.is_array() && !named.empty() ? named[0] : Json();
  std::vector<const FamilyTraits*> families;
  for (const Architecture& known : known_architectures()) {
    if (type != known.model_type && first != known.name) continue;
    families.push_back(&family_traits(known.family));
  }
  if (families.empty()) families.push_back(&all_families().front());
  return families;
}

// Those that the readers of these families ask for. The ones named here are read beside some values
// of others alone, or say in another way what other keys say.
std::vector<std::string> known_keys(const std::vector<const FamilyTraits*>& families) {
  std::set<std::string> keys = {"architectures",
                                "model_type",
                                "text_config",
                                "head_dim",
                                "max_position_embeddings",
                                "original_max_position_embeddings",
                                "use_sliding_window",
                                "max_window_layers"};
  for (const FamilyTraits* family : families) keys.merge(keys_of_family(family->name));
  return {keys.begin(), keys.end()};
}

bool contains(const std::vector<std::string>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// A key of other Hugging Face models that changes what a decoder computes.
struct OtherKey {
  const char* name;
  double neutral = 0;       // the value that changes nothing; false counts as 0 and true as 1
  bool of_experts = false;  // no matter in families with experts, whether they read it or not
};
constexpr OtherKey kOtherKeys[] = {{"activation_sparsity_pattern"},
                                   {"add_cross_attention"},
                                   {"alibi"},
                                   {"attention_chunk_size"},
                                   {"attention_multiplier", 1},
                                   {"attention_out_bias"},
                                   {"attention_output_bias"},
                                   {"attention_qkv_bias"},
                                   {"attn_temperature_tuning"},
                                   {"clip_qkv"},
                                   {"cross_attention_layers"},
                                   {"embd_pdrop"},
                                   {"embedding_multiplier", 1},
                                   {"first_k_dense_replace"},
                                   {"hidden_dropout"},
                                   {"hidden_size_per_layer_input"},
                                   {"interleave_moe_layer_step"},
                                   {"kv_lora_rank"},
                                   {"lm_head_bias"},
                                   {"logit_scale", 1},
                                   {"logits_scaling", 1},
                                   {"moe_intermediate_size", 0, true},
                                   {"n_routed_experts"},
                                   {"n_shared_experts"},
                                   {"no_rope_layer_interval"},
                                   {"no_rope_layers"},
                                   {"num_experts", 0, true},
                                   {"num_experts_per_tok", 0, true},
                                   {"num_kv_shared_layers"},
                                   {"num_local_experts", 0, true},
                                   {kExtraHeadsKey},
                                   {"parallel_attn"},
                                   {"q_lora_rank"},
                                   {"qk_layernorm"},
                                   {"resid_pdrop"},
                                   {"residual_multiplier", 1},
                                   {"rope_interleaved"},
                                   {"rotary_pct", 1},
                                   {"scale_depth", 1},
                                   {"scale_emb", 1},
                                   {"shared_expert_intermediate_size", 0, true},
                                   {"use_mrope"},
                                   {"use_parallel_residual"},
                                   {"use_qk_norm"},
                                   {"v_head_dim"}};

bool changes_nothing(const Json& value, double neutral) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return value.get<bool>() == (neutral != 0);
  if (value.is_number()) return value.get<double>() == neutral;
  return neutral == 0 && value.is_structured() && value.empty();
}

// The key that `word` is a misspelling of; "" when there is none. Hugging Face begins the names of
// its own fields with "_".
std::string misspelt_key(const std::string& word, const std::vector<std::string>& known) {
  if (contains(known, word) || word.starts_with("_")) return "";
  const std::string near = nearest_name(word, known);
  const bool misspelt =
      std::min(word.size(), near.size()) > 3 && edit_distance(word, near) <= kMisspeltBy;
  return misspelt ? near : "";
}

void refuse_misspelt(const ConfigFields& fields, const std::vector<std::string>& known) {
  for (const auto& [key, value] : fields.object().items()) {
    const std::string near = misspelt_key(key, known);
    const auto is_key = [&key](const OtherKey& other) { return other.name == key; };
    if (near.empty() || std::any_of(std::begin(kOtherKeys), std::end(kOtherKeys), is_key)) continue;
    fields.bad({key, near}, fmt::format("'{}' is unknown", fields.name(key)),
               fmt::format("did you mean {}?", near));
  }
}

}  // namespace

void check_config_keys(const ConfigFields& decoder) {
  const auto families = named_families(decoder.object());
  const std::vector<std::string> known = known_keys(families);
  const bool experts = std::any_of(families.begin(), families.end(),
                                   [](const auto* family) { return family->has_experts(); });
  refuse_misspelt(decoder, known);
  for (const auto& [key, neutral, of_experts] : kOtherKeys) {
    if (of_experts ? experts : contains(known, key)) continue;
    const auto found = decoder.object().find(key);
    if (found == decoder.object().end() || changes_nothing(*found, neutral)) continue;
    std::vector<std::string> computing;
    for (const FamilyTraits& family : all_families()) {
      if (contains(known_keys({&family}), key)) computing.push_back(family.name);
    }
    std::string who =
        fmt::format("no family here {}computes with it", of_experts ? "without experts " : "");
    if (!of_experts && !computing.empty()) {
      who = fmt::format("{} compute{} with it, and this family does not",
                        fmt::join(computing, ", "), computing.size() > 1 ? "" : "s");
    }
    decoder.refuse({key}, fmt::format("'{}' is not supported: {}", decoder.name(key), who),
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
    if (value.is_null() || contains(known, key)) continue;
    rope.refuse({key}, fmt::format("'{}' is not supported", rope.name(key)),
                fmt::format("supported: {}", fmt::join(known, ", ")));
  }
}

std::vector<std::string> unread_config_keys(const Json& config) {
  std::vector<std::string> unread;
  const auto add = [&](const Json& object, const std::string& prefix) {
    const std::vector<std::string> known = known_keys(named_families(object));
    for (const auto& [key, value] : object.items()) {
      if (!contains(known, key)) unread.push_back(prefix + key);
    }
  };
  add(config, "");
  const auto text = config.find("text_config");
  if (text != config.end() && text->is_object()) add(*text, "text_config.");
  return unread;
}

}  // namespace shardproof
