// A key of a config.json in its other valid forms. Golden and ranks read it with the same code.
#include <catch2/catch.hpp>

#include "model/config.h"

namespace shardproof::config_forms_test {
namespace {

using Json = nlohmann::json;
using Layers = std::vector<bool>;

Json sized(const char* architecture, const char* type) {
  return {{"architectures", {architecture}},
          {"model_type", type},
          {"vocab_size", 72},
          {"hidden_size", 32},
          {"intermediate_size", 40},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4}};
}

Json with(const char* key, const Json& value) {
  Json config = sized("LlamaForCausalLM", "llama");
  config[key] = value;
  return config;
}

ModelConfig gemma3(const char* key, const Json& value) {
  Json config = sized("Gemma3ForCausalLM", "gemma3_text");
  config["sliding_window_pattern"] = 2;
  config[key] = value;
  return ModelConfig::from_json(config);
}

Json llama3() {
  return {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 48}};
}

}  // namespace

TEST_CASE("The other valid forms of a key say the same", "[model][MP-1]") {
  const auto scaling = [](const char* key, const Json& rope) {
    return ModelConfig::from_json(with(key, rope));
  };
  const Json linear = {{"rope_type", "linear"}, {"factor", 2}},
             old = {{"type", "linear"}, {"factor", 2.0}};
  for (const ModelConfig& config :
       {scaling("rope_scaling", linear), scaling("rope_scaling", old),
        scaling("rope_parameters", linear), scaling("rope_parameters", old)}) {
    CHECK(config.rope_scaling.kind == RopeKind::kLinear);
    CHECK(config.rope_scaling.factor == 2);
    CHECK(config.rope_theta == 10000);
  }
  Json short_llama3 = llama3();
  short_llama3.erase("original_max_position_embeddings");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    CHECK(scaling(key, {{"rope_type", "default"}}).rope_scaling.kind == RopeKind::kDefault);
    CHECK(scaling(key, llama3()).rope_scaling.original_max_position_embeddings == 48);
    CHECK(scaling(key, llama3()).rope_scaling.high_freq_factor == 4);
    Json beside = with(key, short_llama3);
    beside["original_max_position_embeddings"] = 24;  // and not the longer context
    beside["max_position_embeddings"] = 96;
    CHECK(ModelConfig::from_json(beside).rope_scaling.original_max_position_embeddings == 24);
  }
  Json inside = with("rope_theta", 300);
  CHECK(ModelConfig::from_json(inside).rope_theta == 300);
  inside["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500}};
  CHECK(ModelConfig::from_json(inside).rope_theta == 500);

  const ModelConfig layers =
      gemma3("rope_parameters",
             {{"full_attention", {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 5e5}}},
              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}});
  CHECK(layers.rope_theta == 5e5);
  CHECK(layers.rope_scaling.factor == 8);
  CHECK(layers.rope_local_theta == 2e4);
  CHECK(layers.rope_local_scaling.kind == RopeKind::kDefault);
  CHECK(layers.sliding_layers == Layers{true, false, true, false});
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const ModelConfig config = gemma3(key, "gelu_pytorch_tanh");
    CHECK(config.activation == Activation::kGeluTanh);
  }
}

}  // namespace shardproof::config_forms_test
