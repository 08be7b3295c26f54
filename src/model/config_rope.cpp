#include "model/config_rope.h"

#include <fmt/format.h>

#include <cmath>

#include "model/config_keys.h"

namespace shardproof {
namespace {

// The context length with which the model was first trained. If it is absent, Hugging Face takes
// max_position_embeddings.
int64_t read_original_context(const ConfigFields& config, const ConfigFields& rope) {
  const char* key = "original_max_position_embeddings";
  if (config.has(key) && rope.has(key) && config.size(key) != rope.size(key)) {
    rope.bad({key},
             fmt::format("{} is {}, but {} is {}", rope.name(key), rope.size(key), config.name(key),
                         config.size(key)),
             "keep the one that is meant");
  }
  if (rope.has(key)) return rope.size(key);
  return config.has(key) ? config.size(key) : config.size("max_position_embeddings");
}

// Of rope_scaling; an object of rope_parameters has rope_theta too.
std::vector<std::string> scaling_keys() {
  return {"rope_type",
          "type",
          "factor",
          "low_freq_factor",
          "high_freq_factor",
          "original_max_position_embeddings",
          "partial_rotary_factor",
          "attention_factor",
          "beta_fast",
          "beta_slow",
          "mscale",
          "mscale_all_dim",
          "truncate"};
}

double magnitude(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

void read_yarn(const ConfigFields& rope, RopeScaling& scaling) {
  const auto given = [&](const char* key) { return rope.has(key) && rope.number(key) != 0; };
  if (given("beta_fast")) scaling.beta_fast = rope.number("beta_fast");
  if (given("beta_slow")) scaling.beta_slow = rope.number("beta_slow");
  if (!(scaling.beta_slow > 0 && scaling.beta_slow < scaling.beta_fast)) {
    rope.bad({"beta_fast", "beta_slow"},
             fmt::format("{}={} is not between 0 and beta_fast={}", rope.name("beta_slow"),
                         scaling.beta_slow, scaling.beta_fast),
             "beta_slow must be the smaller one");
  }
  scaling.truncate = rope.flag_or("truncate", true);
  if (given("mscale_all_dim")) {
    const double scale = magnitude(scaling.factor, rope.number("mscale_all_dim"));
    scaling.score_factor = scale * scale;
  }
  if (rope.has("attention_factor")) {
    scaling.attention_factor = rope.number("attention_factor");
  } else if (given("mscale") && given("mscale_all_dim")) {
    scaling.attention_factor = magnitude(scaling.factor, rope.number("mscale")) /
                               magnitude(scaling.factor, rope.number("mscale_all_dim"));
  } else {
    scaling.attention_factor = magnitude(scaling.factor, 1);
  }
}

RopeScaling read_scaling(const ConfigFields& config, const ConfigFields& rope) {
  RopeScaling scaling;
  const std::string kind = rope.text_or("rope_type", rope.text_or("type", "default"));
  rope.refuse_unknown(rope.has("rope_type") ? "rope_type" : "type", "rope type", kind,
                      all_names<RopeKind>());
  scaling.kind = enum_of<RopeKind>(kind);
  if (rope.number_or("partial_rotary_factor", 1) != 1) {
    rope.refuse({"partial_rotary_factor"}, "a partial_rotary_factor other than 1 is not supported",
                "remove it");
  }
  if (scaling.kind == RopeKind::kDefault) return scaling;
  rope.number("factor");
  scaling.factor = rope.positive_or("factor", 1);
  if (scaling.kind == RopeKind::kLinear) return scaling;
  if (scaling.kind == RopeKind::kYarn) {
    scaling.original_max_position_embeddings = read_original_context(config, rope);
    read_yarn(rope, scaling);
    return scaling;
  }
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) rope.number(key);
  scaling.low_freq_factor = rope.positive_or("low_freq_factor", 1);
  scaling.high_freq_factor = rope.positive_or("high_freq_factor", 4);
  scaling.original_max_position_embeddings = read_original_context(config, rope);
  if (!(scaling.low_freq_factor < scaling.high_freq_factor)) {
    rope.bad({"low_freq_factor", "high_freq_factor"},
             fmt::format("{}={} is not below high_freq_factor={}", rope.name("low_freq_factor"),
                         scaling.low_freq_factor, scaling.high_freq_factor),
             "low_freq_factor must be the smaller one");
  }
  return scaling;
}

struct RopeOfLayers {
  double& theta;
  RopeScaling& scaling;
};

// Reads one object of rope_parameters, or of one kind of layer in it.
void read_rope_object(const ConfigFields& config, const ConfigFields& fields, RopeOfLayers rope) {
  std::vector<std::string> known = scaling_keys();
  known.push_back("rope_theta");
  check_rope_keys(fields, known);
  rope.theta = fields.positive_or("rope_theta", rope.theta);
  rope.scaling = read_scaling(config, fields);
}

void read_rope_by_layer(const ConfigFields& config, const ConfigFields& fields,
                        ModelConfig& model) {
  for (const char* key : {"rope_theta", "rope_type"}) {
    if (!fields.has(key)) continue;
    config.bad({"rope_parameters"}, "rope_parameters says nothing of the kinds of layers",
               "write one object for full_attention and one for sliding_attention");
  }
  check_rope_keys(fields, {"full_attention", "sliding_attention"});
  if (fields.has("full_attention")) {
    read_rope_object(config, fields.inside("full_attention"),
                     {model.rope_theta, model.rope_scaling});
  }
  if (fields.has("sliding_attention")) {
    read_rope_object(config, fields.inside("sliding_attention"),
                     {model.rope_local_theta, model.rope_local_scaling});
  }
}

// transformers reads its `truncate` from another place there.
void refuse_yarn_by_layer(const ConfigFields& config, const ModelConfig& model) {
  const bool yarn = model.rope_scaling.kind == RopeKind::kYarn ||
                    model.rope_local_scaling.kind == RopeKind::kYarn;
  if (!yarn) return;
  config.refuse({"rope_parameters", "rope_scaling"},
                fmt::format("yarn is not supported for {}", model.traits().name),
                "set rope_type to default, linear or llama3");
}

}  // namespace

void read_rope(const ConfigFields& config, ModelConfig& model) {
  const nlohmann::json* parameters = config.find("rope_parameters");
  const nlohmann::json* old_scaling = config.find("rope_scaling");
  if (parameters != nullptr && old_scaling != nullptr && *parameters != *old_scaling) {
    config.bad({"rope_parameters", "rope_scaling"},
               "'rope_parameters' and a different 'rope_scaling' are both given",
               "keep the one that is meant");
  }
  model.rope_theta = config.positive_or("rope_theta", model.traits().rope_theta);
  const bool local = model.traits().local_rope;
  if (local) {
    model.rope_local_theta = config.positive_or("rope_local_base_freq", model.rope_local_theta);
  }
  if (parameters != nullptr && local) {
    read_rope_by_layer(config, config.inside("rope_parameters"), model);
    refuse_yarn_by_layer(config, model);
  } else if (parameters != nullptr) {
    read_rope_object(config, config.inside("rope_parameters"),
                     {model.rope_theta, model.rope_scaling});
  } else if (old_scaling != nullptr) {
    const ConfigFields fields = config.inside("rope_scaling");
    check_rope_keys(fields, scaling_keys());
    model.rope_scaling = read_scaling(config, fields);
    if (local) refuse_yarn_by_layer(config, model);
  } else if (model.traits().yarn_by_default) {
    model.rope_scaling = {.kind = RopeKind::kYarn,
                          .factor = 32,
                          .original_max_position_embeddings = 4096,
                          .truncate = false,
                          .attention_factor = magnitude(32, 1)};
  }
}

}  // namespace shardproof
