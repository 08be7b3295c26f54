#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <type_traits>

#include "base/error.h"
#include "model/config_experts.h"
#include "model/config_fields.h"
#include "model/config_keys.h"
#include "model/config_rope.h"
#include "model/config_windows.h"

namespace shardproof {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxLayers = 10000;
constexpr int64_t kMaxExtraHeads = 100;

std::vector<std::string> names_of_architectures(const char* Architecture::*field) {
  std::vector<std::string> names;
  for (const Architecture& known : known_architectures()) names.emplace_back(known.*field);
  return names;
}

Architecture architecture_called(const char* Architecture::*field, const std::string& name) {
  for (const Architecture& known : known_architectures()) {
    if (name == known.*field) return known;
  }
  SHARDPROOF_ASSERT(false, "unknown names are refused before");
  return {};
}

// Reads 'architectures' or 'model_type', or both, which then must agree.
Architecture read_architecture(const ConfigFields& config) {
  const Json* named = config.find("architectures");
  const std::string model_type = config.text_or("model_type", "");
  if (named == nullptr && model_type.empty()) {
    config.bad({"architectures", "model_type"}, "neither 'architectures' nor 'model_type' is given",
               "add \"architectures\": [\"LlamaForCausalLM\"]");
  }
  std::optional<Architecture> found;
  if (named != nullptr) {
    const bool well_formed = named->is_array() && !named->empty() && named->at(0).is_string();
    if (!well_formed) config.wrong_type("architectures", *named, "a list of names");
    const std::string name = named->at(0).get<std::string>();
    config.refuse_unknown("architectures", "architecture", name,
                          names_of_architectures(&Architecture::name));
    found = architecture_called(&Architecture::name, name);
  }
  if (model_type.empty()) return *found;
  config.refuse_unknown("model_type", "model_type", model_type,
                        names_of_architectures(&Architecture::model_type));
  const Architecture typed = architecture_called(&Architecture::model_type, model_type);
  if (found && found->model_type != std::string_view(typed.model_type)) {
    config.bad({"model_type", "architectures"},
               fmt::format("architecture \"{}\" has model_type \"{}\", but \"{}\" is given",
                           found->name, found->model_type, model_type),
               "keep the one that is meant");
  }
  return typed;
}

Activation read_activation(const ConfigFields& config, const FamilyTraits& family) {
  const std::string name = config.text_or(family.activation_key, family.activation);
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    if (config.text_or(key, name) == name) continue;
    config.refuse({key},
                  fmt::format("{} \"{}\" has no effect: {} has the activation \"{}\"", key,
                              config.text_or(key, ""), family.name, name),
                  fmt::format("remove it, or set {}", family.activation_key));
  }
  if (name == "silu" || name == "swish") {
    return family.clamped_experts ? Activation::kClampedSwiglu : Activation::kSilu;
  }
  if (name == "gelu_pytorch_tanh" && !family.clamped_experts) return Activation::kGeluTanh;
  config.refuse({family.activation_key},
                fmt::format("{} \"{}\" is not supported", family.activation_key, name),
                family.clamped_experts ? "supported: silu" : "supported: silu, gelu_pytorch_tanh");
}

// A size that has a default in some families.
int64_t size_of_family(const ConfigFields& config, const char* key, int64_t default_of_family) {
  return default_of_family > 0 ? config.size_or(key, default_of_family) : config.size(key);
}

LatentSizes read_latent(const ConfigFields& config) {
  LatentSizes sizes{.kv_rank = config.size_or("kv_lora_rank", 512),
                    .nope = config.size_or("qk_nope_head_dim", 128),
                    .rope = config.size_or("qk_rope_head_dim", 64),
                    .value = config.size_or("v_head_dim", 128),
                    .interleaved = config.flag_or("rope_interleave", true)};
  if (!config.is_null("q_lora_rank")) sizes.q_rank = config.size_or("q_lora_rank", 1536);
  if (sizes.rope % 2 != 0) {
    config.bad({"qk_rope_head_dim"}, fmt::format("qk_rope_head_dim={} is odd", sizes.rope),
               "rotary embeddings turn pairs: make it even");
  }
  return sizes;
}

int64_t read_head_dim(const ConfigFields& config, const ModelConfig& model) {
  if (model.traits().latent_attention) return model.latent.nope + model.latent.rope;
  const int64_t of_family = model.traits().head_dim;
  if (config.has("head_dim") || of_family > 0) return config.size_or("head_dim", of_family);
  if (model.hidden_size % model.num_attention_heads != 0) {
    config.bad({"hidden_size", "num_attention_heads"},
               fmt::format("hidden_size={} is not a multiple of num_attention_heads={}",
                           model.hidden_size, model.num_attention_heads),
               "change one of them, or give head_dim");
  }
  return model.hidden_size / model.num_attention_heads;
}

void read_heads(const ConfigFields& config, ModelConfig& model) {
  const FamilyTraits& family = model.traits();
  model.num_attention_heads =
      size_of_family(config, "num_attention_heads", family.num_attention_heads);
  const bool as_many = family.num_key_value_heads == 0 || config.is_null("num_key_value_heads");
  model.num_key_value_heads = config.size_or(
      "num_key_value_heads", as_many ? model.num_attention_heads : family.num_key_value_heads);
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    config.bad({"num_attention_heads", "num_key_value_heads"},
               fmt::format("num_attention_heads={} is not a multiple of num_key_value_heads={}",
                           model.num_attention_heads, model.num_key_value_heads),
               "each kv head serves the same number of query heads");
  }
  if (family.latent_attention) {
    model.latent = read_latent(config);
    if (model.num_key_value_heads != model.num_attention_heads) {
      config.refuse(
          {"num_key_value_heads"},
          fmt::format("num_key_value_heads={}, but every one of {} heads has its own keys",
                      model.num_key_value_heads, model.num_attention_heads),
          "set it to num_attention_heads");
    }
  }
  model.head_dim = read_head_dim(config, model);
  if (!family.latent_attention && model.head_dim % 2 != 0) {
    config.bad({"head_dim", "hidden_size", "num_attention_heads"},
               fmt::format("head_dim={} is odd", model.head_dim),
               "rotary embeddings turn pairs: make it even");
  }
  if (family.own_score_scale) {
    model.query_pre_attn_scalar = config.positive_or("query_pre_attn_scalar", 256);
  }
}

// As padding_idx of torch.nn.Embedding: a negative id counts from the end of the vocabulary.
int64_t read_pad_token(const ConfigFields& config, const ModelConfig& model) {
  if (config.is_null("pad_token_id")) return -1;
  if (!config.has("pad_token_id")) return model.traits().pad_token_id;
  const int64_t id = config.integer_or("pad_token_id", -1), vocab_size = model.vocab_size;
  if (id < -vocab_size || id >= vocab_size) {
    config.bad(
        {"pad_token_id", "vocab_size"},
        fmt::format("pad_token_id={} is outside the vocabulary of {} tokens", id, vocab_size),
        "give an id of the vocabulary, or null");
  }
  return id < 0 ? id + vocab_size : id;
}

// A model that also reads images has the key outside of its text part.
bool read_tie(const ConfigFields& whole, const ConfigFields& text, const FamilyTraits& family) {
  const char* key = "tie_word_embeddings";
  const bool of_text = text.flag_or(key, family.tied);
  const bool tied = whole.flag_or(key, of_text);
  if (text.has(key) && tied != of_text) {
    text.bad({key},
             fmt::format("{} is {}, but {} is {}", text.name(key), of_text, whole.name(key), tied),
             "keep the one that is meant");
  }
  return tied;
}

// `whole` is another object than `config` where the text part is inside.
void read_decoder(const ConfigFields& whole, const ConfigFields& config, ModelConfig& model) {
  const FamilyTraits& family = model.traits();
  check_family_keys(config, family);
  model.activation = read_activation(config, family);
  model.vocab_size = size_of_family(config, "vocab_size", family.vocab_size);
  model.hidden_size = config.size("hidden_size");
  model.intermediate_size = config.size("intermediate_size");
  model.num_hidden_layers = config.size("num_hidden_layers", kMaxLayers);
  read_heads(config, model);
  model.pad_token_id = read_pad_token(config, model);
  model.rms_norm_eps = config.positive_or("rms_norm_eps", family.rms_norm_eps);
  read_rope(config, model);
  read_windows(config, model);
  model.attention_bias = config.flag_or("attention_bias", family.attention_bias);
  if (family.clamped_experts) {
    model.gate_clamp.alpha = config.number_or("swiglu_alpha", model.gate_clamp.alpha);
    model.gate_clamp.limit = config.positive_or("swiglu_limit", model.gate_clamp.limit);
  }
  if (family.qkv_bias_option) model.qkv_bias = config.flag_or("qkv_bias", family.qkv_bias);
  model.read_members([&config](const char* key, auto& member) {
    if constexpr (std::is_same_v<decltype(member), bool&>) {
      member = config.flag_or(key, member);
    } else {
      member = config.number_or(key, member);
    }
  });
  if (family.extra_heads) {
    model.extra_heads = config.integer_or(kExtraHeadsKey, *family.extra_heads);
    if (model.extra_heads < 0 || model.extra_heads > kMaxExtraHeads) {
      config.bad(
          {kExtraHeadsKey},
          fmt::format("{}={} is not a number of extra heads", kExtraHeadsKey, model.extra_heads),
          fmt::format("give 0 to {}", kMaxExtraHeads));
    }
    model.extra_loss_weight = config.number_or(kExtraLossKey, model.extra_loss_weight);
    if (model.extra_loss_weight < 0) {
      config.bad({kExtraLossKey},
                 fmt::format("{}={} is negative", kExtraLossKey, model.extra_loss_weight),
                 "give 0 or more");
    }
    model.repeats_extra_layer = config.flag_or(kRepeatedLayerKey, false);
  }
  read_experts(config, model);
  model.tie_word_embeddings = read_tie(whole, config, family);
}

}  // namespace

std::set<std::string> keys_of_family(const std::string& family) {
  std::set<std::string> read;
  const ConfigFields config(read);
  ModelConfig model;
  model.family = family;
  read_decoder(config, config, model);
  return read;
}

bool ModelConfig::has_bias(const std::string& linear) const {
  if (linear.starts_with("mlp.")) return mlp_bias;
  if (linear == "eh_proj") return false;
  return attention_bias || (qkv_bias.value_or(traits().qkv_bias) && linear != "self_attn.o_proj");
}

int64_t ModelConfig::layers_with_weights() const {
  return num_hidden_layers +
         (repeats_extra_layer ? std::min<int64_t>(extra_heads, 1) : extra_heads);
}

int64_t ModelConfig::window_of_layer(int64_t layer) const {
  const auto index = static_cast<size_t>(layer);
  return index < sliding_layers.size() && sliding_layers[index] ? sliding_window : 0;
}

bool ModelConfig::has_sliding_layers() const {
  return std::find(sliding_layers.begin(), sliding_layers.end(), true) != sliding_layers.end();
}

bool ModelConfig::has_experts(int64_t layer) const {
  const auto index = static_cast<size_t>(layer);
  return index < expert_layers.size() && expert_layers[index];
}

// transformers gives the norms of latents an eps of their own.
double ModelConfig::eps_of_norm(const std::string& slot) const {
  return slot.find("_a_layernorm") == std::string::npos ? rms_norm_eps : 1e-6;
}

std::string ModelConfig::router_of(int64_t layer) const {
  return fmt::format("model.layers.{}.{}", layer, traits().router);
}

bool ModelConfig::has_experts() const {
  return std::find(expert_layers.begin(), expert_layers.end(), true) != expert_layers.end();
}

bool ModelConfig::has_shared_expert(int64_t layer) const {
  return shared_width > 0 && has_experts(layer);
}

int64_t ModelConfig::mlp_width(const std::string& slot) const {
  return slot.find("mlp.shared_expert") == std::string::npos ? intermediate_size : shared_width;
}

ExpertForm ModelConfig::expert_form() const {
  return {
      .activation = activation, .clamp = gate_clamp, .columns_in_turn = traits().clamped_experts};
}

double ModelConfig::score_scale() const {
  const double size =
      query_pre_attn_scalar > 0 ? query_pre_attn_scalar : static_cast<double>(head_dim);
  return (traits().latent_attention ? rope_scaling.score_factor : 1.0) / std::sqrt(size);
}

double ModelConfig::embedding_scale() const {
  return traits().scaled_embedding ? std::sqrt(static_cast<double>(hidden_size)) : 1.0;
}

namespace {

ModelConfig read_config(const Json& json, const std::set<std::string>& left_out) {
  const ConfigFields whole(json, left_out);
  check_config_keys(whole);
  const Architecture architecture = read_architecture(whole);
  ModelConfig model;
  model.family = architecture.family;
  if (!architecture.text_inside) {
    read_decoder(whole, whole, model);
    return model;
  }
  if (!whole.has("text_config")) {
    whole.bad({"text_config"},
              fmt::format("'text_config' is missing, which {} needs", architecture.name),
              "add it: the sizes of the text part");
  }
  const ConfigFields text = whole.inside("text_config");
  check_config_keys(text);
  read_decoder(whole, text, model);
  return model;
}

constexpr size_t kMaxConfigProblems = 20;

// Removes the value of a JSON pointer, where there is one.
void remove_at(Json& config, const Json::json_pointer& place) {
  if (!config.contains(place)) return;
  config[place.parent_pointer()].erase(place.back());
}

}  // namespace

// Reads again and again, each time without the keys of the problem before. One that is about such a
// key follows from what is known, and is not said.
ModelConfig ModelConfig::from_json(const Json& json) {
  std::vector<ConfigProblem> problems;
  std::set<std::string> left_out;
  Json config = json;
  for (;;) {
    try {
      const ModelConfig model = read_config(config, left_out);
      if (problems.empty()) return model;
      break;
    } catch (const ConfigProblem& problem) {
      const auto known = [&](const std::string& key) { return left_out.contains(key); };
      if (std::none_of(problem.keys.begin(), problem.keys.end(), known)) {
        problems.push_back(problem);
      }
      const size_t before = left_out.size();
      for (const std::string& key : problem.keys) {
        left_out.insert(key);
        remove_at(config, Json::json_pointer(key));
      }
      if (left_out.size() == before || problems.size() == kMaxConfigProblems) break;
    }
  }
  throw ConfigError(problems);
}

}  // namespace shardproof
