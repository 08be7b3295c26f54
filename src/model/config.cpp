#include "model/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "base/error.h"

namespace shardproof {
namespace {

using Json = nlohmann::json;

constexpr std::array<const char*, 1> kArchitectures = {"LlamaForCausalLM"};
constexpr std::array<const char*, 1> kModelTypes = {"llama"};
constexpr std::array<const char*, 3> kRopeTypes = {"default", "linear", "llama3"};
constexpr int64_t kMaxLayers = 10000;
constexpr int64_t kMaxSize = 1 << 24;  // of any one size: products of two stay far from overflow

[[noreturn]] void bad_config(std::string what, std::string fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = std::move(what), .fix = std::move(fix)});
}

[[noreturn]] void refuse(std::string what, std::string fix) {
  throw Error({.kind = ErrorKind::kRefused, .what = std::move(what), .fix = std::move(fix)});
}

// A JSON value as a message shows it: short, on one line.
std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

// Checked access to one JSON object; null counts as missing, as in Hugging Face configs.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) {
      bad_config(fmt::format("{} is {}, not an object", where_, shown(object)),
                 "write it as {\"key\": value, ...}");
    }
  }

  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  int64_t size(const char* key, int64_t largest = kMaxSize) const {
    if (find(key) == nullptr) {
      bad_config(fmt::format("{} has no '{}'", where_, key), "add it: a positive integer");
    }
    return size_or(key, 0, largest);
  }

  int64_t size_or(const char* key, int64_t otherwise, int64_t largest = kMaxSize) const {
    const int64_t value = integer_or(key, otherwise);
    if (find(key) != nullptr && (value < 1 || value > largest)) {
      bad_config(fmt::format("{}: {}={} is not in 1..{}", where_, key, value, largest),
                 "give a size in that range");
    }
    return value;
  }

  int64_t integer_or(const char* key, int64_t otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    const bool fits = value->is_number_integer() &&
                      !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
    if (!fits) wrong_type(key, *value, "an integer");
    return value->get<int64_t>();
  }

  double number(const char* key) const {
    if (find(key) == nullptr)
      bad_config(fmt::format("{} has no '{}'", where_, key), "add it: a number");
    return number_or(key, 0);
  }

  double number_or(const char* key, double otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) wrong_type(key, *value, "a number");
    const double number = value->get<double>();
    if (!std::isfinite(number)) wrong_type(key, *value, "a finite number");
    return number;
  }

  double positive_or(const char* key, double otherwise) const {
    const double value = number_or(key, otherwise);
    if (!(value > 0)) {
      bad_config(fmt::format("{}: {}={} is not positive", where_, key, value),
                 "give a positive number");
    }
    return value;
  }

  bool flag_or(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) wrong_type(key, *value, "true or false");
    return value->get<bool>();
  }

  std::string text_or(const char* key, const std::string& otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) wrong_type(key, *value, "a text");
    return value->get<std::string>();
  }

  [[noreturn]] void wrong_type(const char* key, const Json& value, const char* wanted) const {
    bad_config(fmt::format("{}: '{}' is {}", where_, key, shown(value)),
               fmt::format("write {} there", wanted));
  }

  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
};

template <class Names>
void refuse_unknown(const char* what, const std::string& name, const Names& known) {
  for (const char* each : known) {
    if (name == each) return;
  }
  const std::string near = nearest_name(name, known);
  refuse(fmt::format("{} \"{}\" is not supported", what, name),
         near.empty() ? fmt::format("supported: {}", fmt::join(known, ", "))
                      : fmt::format("the nearest that is: \"{}\"", near));
}

void check_architecture(const Fields& config) {
  const Json* architectures = config.find("architectures");
  const std::string model_type = config.text_or("model_type", "");
  if (architectures == nullptr && model_type.empty()) {
    bad_config("config.json names neither 'architectures' nor 'model_type'",
               "add \"architectures\": [\"LlamaForCausalLM\"]");
  }
  if (architectures != nullptr) {
    const bool well_formed =
        architectures->is_array() && !architectures->empty() && architectures->at(0).is_string();
    if (!well_formed) config.wrong_type("architectures", *architectures, "a list of names");
    refuse_unknown("architecture", architectures->at(0).get<std::string>(), kArchitectures);
  }
  if (!model_type.empty()) refuse_unknown("model_type", model_type, kModelTypes);
}

void check_options(const Fields& config) {
  const std::string activation = config.text_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    refuse(fmt::format("hidden_act \"{}\" is not supported", activation), "supported: silu");
  }
  if (config.number_or("attention_dropout", 0) != 0) {
    refuse("attention_dropout is not supported: a judged run must be deterministic",
           "set attention_dropout to 0");
  }
  if (config.find("quantization_config") != nullptr) {
    refuse("quantized models are not supported", "give the model in a floating-point dtype");
  }
}

// Llama 3's rope names the context length that the model was first trained with; where it does not,
// Hugging Face takes max_position_embeddings.
int64_t read_original_context(const Fields& config, const Fields& rope) {
  const char* key = "original_max_position_embeddings";
  if (config.find(key) != nullptr && rope.find(key) != nullptr &&
      config.size(key) != rope.size(key)) {
    bad_config(fmt::format("{} is {} in config.json and {} in {}", key, config.size(key),
                           rope.size(key), rope.where()),
               "keep the one that is meant");
  }
  if (rope.find(key) != nullptr) return rope.size(key);
  return config.find(key) != nullptr ? config.size(key) : config.size("max_position_embeddings");
}

RopeScaling read_scaling(const Fields& config, const Fields& rope) {
  RopeScaling scaling;
  scaling.kind = rope.text_or("rope_type", rope.text_or("type", "default"));
  refuse_unknown("rope type", scaling.kind, kRopeTypes);
  if (rope.number_or("partial_rotary_factor", 1) != 1) {
    refuse("a partial_rotary_factor other than 1 is not supported", "remove it");
  }
  if (scaling.kind == "default") return scaling;
  rope.number("factor");
  scaling.factor = rope.positive_or("factor", 1);
  if (scaling.kind == "linear") return scaling;
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) rope.number(key);
  scaling.low_freq_factor = rope.positive_or("low_freq_factor", 1);
  scaling.high_freq_factor = rope.positive_or("high_freq_factor", 4);
  scaling.original_max_position_embeddings = read_original_context(config, rope);
  if (!(scaling.low_freq_factor < scaling.high_freq_factor)) {
    bad_config(fmt::format("{}: low_freq_factor={} is not below high_freq_factor={}", rope.where(),
                           scaling.low_freq_factor, scaling.high_freq_factor),
               "low_freq_factor must be the smaller one");
  }
  return scaling;
}

// transformers 4: "rope_theta" and "rope_scaling"; transformers 5: both inside "rope_parameters".
void read_rope(const Fields& config, ModelConfig& model) {
  const Json* parameters = config.find("rope_parameters");
  const Json* old_scaling = config.find("rope_scaling");
  if (parameters != nullptr && old_scaling != nullptr && *parameters != *old_scaling) {
    bad_config("config.json has both 'rope_parameters' and a different 'rope_scaling'",
               "keep the one that is meant");
  }
  model.rope_theta = config.positive_or("rope_theta", model.rope_theta);
  if (parameters != nullptr) {
    const Fields rope(*parameters, "rope_parameters");
    model.rope_theta = rope.positive_or("rope_theta", model.rope_theta);
    model.rope_scaling = read_scaling(config, rope);
  } else if (old_scaling != nullptr) {
    model.rope_scaling = read_scaling(config, Fields(*old_scaling, "rope_scaling"));
  }
}

void read_heads(const Fields& config, ModelConfig& model) {
  model.num_attention_heads = config.size("num_attention_heads");
  model.num_key_value_heads = config.size_or("num_key_value_heads", model.num_attention_heads);
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    bad_config(fmt::format("num_attention_heads={} is no multiple of num_key_value_heads={}",
                           model.num_attention_heads, model.num_key_value_heads),
               "each kv head serves the same number of query heads");
  }
  const bool divides = model.hidden_size % model.num_attention_heads == 0;
  if (config.find("head_dim") == nullptr && !divides) {
    bad_config(fmt::format("hidden_size={} is no multiple of num_attention_heads={}",
                           model.hidden_size, model.num_attention_heads),
               "change one of them, or give head_dim");
  }
  model.head_dim = config.size_or("head_dim", model.hidden_size / model.num_attention_heads);
  if (model.head_dim % 2 != 0) {
    bad_config(fmt::format("head_dim={} is odd", model.head_dim),
               "rotary embeddings turn pairs: make it even");
  }
}

// As torch.nn.Embedding's padding_idx: a negative one counts from the end of the vocabulary.
int64_t read_pad_token(const Fields& config, int64_t vocab_size) {
  if (config.find("pad_token_id") == nullptr) return -1;
  const int64_t id = config.integer_or("pad_token_id", -1);
  if (id < -vocab_size || id >= vocab_size) {
    bad_config(
        fmt::format("pad_token_id={} is outside the vocabulary of {} tokens", id, vocab_size),
        "give an id of the vocabulary, or null");
  }
  return id < 0 ? id + vocab_size : id;
}

}  // namespace

ModelConfig ModelConfig::from_json(const Json& json) {
  const Fields config(json, "config.json");
  check_architecture(config);
  check_options(config);
  ModelConfig model;
  model.family = "llama";
  model.vocab_size = config.size("vocab_size");
  model.hidden_size = config.size("hidden_size");
  model.intermediate_size = config.size("intermediate_size");
  model.num_hidden_layers = config.size("num_hidden_layers", kMaxLayers);
  read_heads(config, model);
  model.pad_token_id = read_pad_token(config, model.vocab_size);
  model.rms_norm_eps = config.positive_or("rms_norm_eps", model.rms_norm_eps);
  read_rope(config, model);
  model.tie_word_embeddings = config.flag_or("tie_word_embeddings", false);
  model.attention_bias = config.flag_or("attention_bias", false);
  model.mlp_bias = config.flag_or("mlp_bias", false);
  return model;
}

}  // namespace shardproof
