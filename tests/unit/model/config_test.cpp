// Legend: a config is a Hugging Face config.json.
#include "model/config.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "model/config_keys.h"

namespace shardproof::config_test {
namespace {

using Json = nlohmann::json;

Json small() {
  return Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "vocab_size": 72, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4})");
}

Json with(const char* key, const Json& value) {
  Json config = small();
  config[key] = value;
  return config;
}

Json without(const char* key) {
  Json config = small();
  config.erase(key);
  return config;
}

Json llama3() {
  return {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 48}};
}

Json llama3_without(const char* key) {
  Json rope = llama3();
  rope.erase(key);
  return rope;
}

// The kind and the text of the error for `config`.
std::pair<ErrorKind, std::string> complaint(const Json& config) {
  try {
    ModelConfig::from_json(config);
  } catch (const Error& error) {
    CHECK_FALSE(error.fix().empty());
    return {error.kind(), error.what()};
  }
  FAIL("no error for " << config.dump());
  return {};
}

}  // namespace

TEST_CASE("What a config leaves out has Hugging Face's defaults; null counts as left out",
          "[model]") {
  Json nulls = small();
  for (const char* key : {"num_key_value_heads", "head_dim", "rope_scaling", "pad_token_id",
                          "rms_norm_eps", "tie_word_embeddings"}) {
    nulls[key] = nullptr;
  }
  for (const Json& json : {small(), nulls}) {
    const ModelConfig config = ModelConfig::from_json(json);
    CHECK(config.num_key_value_heads == 4);
    CHECK(config.head_dim == 8);
    CHECK(config.pad_token_id == -1);
    CHECK(config.rms_norm_eps == 1e-6);
    CHECK(config.rope_theta == 10000.0);
    CHECK(config.rope_scaling.kind == RopeKind::kDefault);
    CHECK_FALSE(config.tie_word_embeddings);
    CHECK_FALSE(config.attention_bias);
    CHECK_FALSE(config.mlp_bias);
  }
  Json rope = with("max_position_embeddings", 96);
  rope["rope_parameters"] = llama3_without("original_max_position_embeddings");
  CHECK(ModelConfig::from_json(rope).rope_scaling.original_max_position_embeddings == 96);
}

TEST_CASE("A negative padding token counts from the end, as torch.nn.Embedding has it", "[model]") {
  CHECK(ModelConfig::from_json(with("pad_token_id", 0)).pad_token_id == 0);
  CHECK(ModelConfig::from_json(with("pad_token_id", -1)).pad_token_id == 71);
  CHECK(complaint(with("pad_token_id", 72)).first == ErrorKind::kBadInput);
  CHECK(complaint(with("pad_token_id", -73)).first == ErrorKind::kBadInput);
}

TEST_CASE("A config that no model could have is bad input, with a sentence", "[model]") {
  const auto [json, word] = GENERATE(table<Json, std::string>({
      {Json::array(), "not an object"},
      {Json(3), "not an object"},
      {without("vocab_size"), "vocab_size"},
      {without("intermediate_size"), "intermediate_size"},
      {with("hidden_size", "32"), "an integer"},
      {with("hidden_size", 32.5), "an integer"},
      {with("hidden_size", 0), "hidden_size=0"},
      {with("hidden_size", -32), "hidden_size=-32"},
      {with("hidden_size", 18446744073709551615ULL), "an integer"},
      {with("vocab_size", 1LL << 40), "vocab_size"},
      {with("num_hidden_layers", 1 << 20), "num_hidden_layers"},
      {with("hidden_size", 30), "multiple"},
      {with("num_key_value_heads", 3), "multiple"},
      {with("head_dim", 7), "odd"},
      {with("tie_word_embeddings", 1), "true or false"},
      {with("rms_norm_eps", 0), "not positive"},
      {with("rms_norm_eps", "small"), "a number"},
      {with("rope_theta", -1.0), "not positive"},
      {with("rope_scaling", 4), "not an object"},
      {with("rope_scaling", {{"rope_type", "linear"}}), "factor"},
      {with("rope_scaling", llama3_without("low_freq_factor")), "low_freq_factor"},
      {with("rope_scaling", llama3_without("original_max_position_embeddings")),
       "max_position_embeddings"},
      {with("architectures", "LlamaForCausalLM"), "a list"},
      {with("architectures", Json::array()), "a list"},
      {with("architectures", {3}), "a list"},
      {with("model_type", 5), "a text"},
      {with("num_atention_heads", 2), "did you mean num_attention_heads?"},
      {with("rope_thata", 2.0), "did you mean rope_theta?"},
      {with("rope_scaling", {{"rope_type", "linear"}, {"factr", 2}}), "did you mean factor?"},
  }));
  const auto [kind, sentence] = complaint(json);
  INFO(json.dump() << " -> " << sentence);
  CHECK(kind == ErrorKind::kBadInput);
  CHECK_THAT(sentence, Catch::Contains(word));
}

TEST_CASE("Frequency factors in the wrong order and two different rope blocks are bad input",
          "[model]") {
  Json rope = llama3();
  rope["low_freq_factor"] = 4.0;
  CHECK(complaint(with("rope_scaling", rope)).first == ErrorKind::kBadInput);
  Json both = with("rope_scaling", {{"type", "linear"}, {"factor", 2}});
  both["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 100.0}};
  CHECK(complaint(both).first == ErrorKind::kBadInput);
  Json none = without("architectures");
  none.erase("model_type");
  CHECK(complaint(none).first == ErrorKind::kBadInput);
}

TEST_CASE("Experts of mixtral and qwen3_moe are read, in both spellings", "[model][FM-1][FM-2]") {
  const auto family = [](const char* name, const char* changes) {
    Json config = without("architectures");
    config["model_type"] = name;
    config["num_hidden_layers"] = 4;
    config["num_key_value_heads"] = 2;
    config.update(Json::parse(changes));
    return config;
  };
  const ModelConfig mixtral = ModelConfig::from_json(family("mixtral", "{}"));
  CHECK(mixtral.router.num_experts == 8);
  CHECK(mixtral.router.num_chosen == 2);
  CHECK(mixtral.router.scores == RouterScores::kSoftmaxOfChosen);
  CHECK(mixtral.expert_width == 40);
  CHECK(mixtral.expert_layers == std::vector<bool>{true, true, true, true});
  CHECK(mixtral.rms_norm_eps == 1e-5);
  CHECK(mixtral.rope_theta == 1e6);
  for (const char* key : {"num_experts", "num_local_experts"}) {
    Json json = family("qwen3_moe", R"({"num_experts_per_tok": 3, "moe_intermediate_size": 6,
      "norm_topk_prob": true, "decoder_sparse_step": 2, "mlp_only_layers": [3]})");
    json[key] = 5;
    const ModelConfig config = ModelConfig::from_json(json);
    CHECK(config.router.num_experts == 5);
    CHECK(config.router.num_chosen == 3);
    CHECK(config.router.scores == RouterScores::kSoftmaxOfAll);
    CHECK(config.router.normalized);
    CHECK(config.expert_width == 6);
    CHECK(config.expert_layers == std::vector<bool>{false, true, false, false});
    CHECK_FALSE(config.has_experts(0));
    CHECK(config.has_experts());
    CHECK(unread_config_keys(json).empty());
  }
  CHECK_FALSE(ModelConfig::from_json(small()).has_experts());
  CHECK(unread_config_keys(family("mixtral", R"({"router_aux_loss_coef": 0.5})")).empty());

  const std::pair<Json, const char*> wrong[] = {
      {family("mixtral", R"({"num_experts_per_tok": 1})"), "no gradient"},
      {family("mixtral", R"({"num_experts_per_tok": 9})"), "from 1 to 8"},
      {family("mixtral", R"({"router_jitter_noise": 0.1})"), "deterministic"},
      {family("mixtral", R"({"output_router_logits": 1.5})"), "output_router_logits"},
      {family("mixtral", R"({"router_aux_loss_coef": -0.1})"), "router_aux_loss_coef=-0.1"},
      {family("mixtral", R"({"num_local_expert": 4})"), "did you mean num_local_experts?"},
      {family("qwen3_moe", R"({"mlp_only_layers": "1"})"), "a list of layer numbers"},
      {family("qwen3_moe", R"({"num_experts": 4, "num_local_experts": 8})"),
       "num_experts=4, but num_local_experts=8"},
      {with("num_experts", 4), "no family here without experts computes with it"},
      {with("num_nextn_predict_layers", 1),
       "llama_mtp, deepseek_v3 compute with it, and this family does not"}};
  for (const auto& [json, word] : wrong) CHECK_THAT(complaint(json).second, Catch::Contains(word));
}

TEST_CASE("Keys of Hugging Face that change nothing are left alone, and are listed", "[model]") {
  Json config = small();
  config.update(Json::parse(R"({"torch_dtype": "bfloat16", "use_cache": true, "eos_token_id": [1],
    "bos_token_id": 0, "_sliding_window_pattern": 6, "pretraining_tp": 1, "num_experts": 0,
    "embedding_multiplier": 1.0, "use_mrope": false, "clip_qkv": null, "sliding_window": 4,
    "use_sliding_window": false, "layer_types": ["full_attention", "full_attention"]})"));
  CHECK_NOTHROW(ModelConfig::from_json(config));
  CHECK(unread_config_keys(config) ==
        std::vector<std::string>{"_sliding_window_pattern", "bos_token_id", "clip_qkv",
                                 "embedding_multiplier", "eos_token_id", "num_experts",
                                 "pretraining_tp", "torch_dtype", "use_cache", "use_mrope"});
  CHECK(unread_config_keys(small()).empty());
}

TEST_CASE("All problems of a config are said at once, and none that follow from others",
          "[model]") {
  Json config = small();
  config.erase("intermediate_size");
  config["hidden_size"] = "32";       // no heads of 32 / 4 are missed
  config["num_attention_heads"] = 0;  // nor that 0 is not a multiple of the kv heads
  config["rms_norm_eps"] = -1.0;
  config["vocab_size"] = 3;
  config["pad_token_id"] = 7;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", "two"}, {"a/b~c", 1}};
  config["num_experts"] = 8;  // refused, as a/b~c is
  std::vector<std::string> keys;
  try {
    ModelConfig::from_json(config);
  } catch (const shardproof::ConfigError& error) {
    CHECK(error.kind() == ErrorKind::kBadInput);
    for (const auto& problem : error.problems) keys.push_back(problem.keys.front());
  }
  std::sort(keys.begin(), keys.end());
  CHECK(keys == std::vector<std::string>{"/hidden_size", "/intermediate_size",
                                         "/num_attention_heads", "/num_experts", "/pad_token_id",
                                         "/rms_norm_eps", "/rope_scaling/a~1b~0c",
                                         "/rope_scaling/factor"});
}

TEST_CASE("What a problem hides does not hide another problem", "[model]") {
  Json config = with("rms_norm_eps", "small");
  config["architectures"] = {"Qwen2ForCausalLM"};  // 32 heads of keys and values by default
  config.erase("model_type");
  const std::string sentences = complaint(config).second;
  CHECK_THAT(sentences, Catch::Contains("num_attention_heads=4 is not a multiple"));
  CHECK_THAT(sentences, Catch::Contains("rms_norm_eps"));
}

TEST_CASE("A valid config of what is not supported is refused, with the nearest that is",
          "[model]") {
  const auto [json, word] = GENERATE(table<Json, std::string>({
      {with("architectures", {"LlamaForCausalLMs"}), "\"LlamaForCausalLM\""},
      {with("architectures", {"MambaModel"}), "supported: LlamaForCausalLM"},
      {with("model_type", "lama"), "\"llama\""},
      {with("hidden_act", "gelu"), "silu"},
      {with("final_logit_softcapping", 30.0), "final_logit_softcapping"},
      {with("use_bidirectional_attention", true), "use_bidirectional_attention"},
      {with("architectures", {"Qwen3ForCausaLM"}), "\"Qwen3ForCausalLM\""},
      {with("model_type", "gemma3_txt"), "\"gemma3_text\""},
      {with("rope_scaling", {{"rope_type", "longrope"}, {"factor", 2}}), "longrope"},
      {with("rope_scaling", {{"rope_type", "liner"}, {"factor", 2}}), "\"linear\""},
      {with("attention_dropout", 0.1), "attention_dropout"},
      {with("quantization_config", Json::object()), "quantized"},
      {with("partial_rotary_factor", 0.5), "partial_rotary_factor"},
      {with("num_experts", 8), "num_experts"},
      {with("embedding_multiplier", 12.0), "embedding_multiplier"},
      {with("no_rope_layers", {1, 0}), "no_rope_layers"},
      {with("clip_qkv", 8), "clip_qkv"},
      {with("qk_layernorm", true), "qk_layernorm"},
      {with("sliding_window", 4), "sliding_window is not an option of llama"},
      {with("layer_types", {"full_attention", "sliding_attention"}), "sliding layers"},
      {with("query_pre_attn_scalar", 64), "query_pre_attn_scalar"},
      {with("rope_local_base_freq", 100.0), "rope_local_base_freq"},
      {with("hidden_activation", "gelu_pytorch_tanh"), "remove it, or set hidden_act"},
      {with("rope_scaling", {{"rope_type", "default"}, {"mrope_section", {1, 1}}}),
       "mrope_section"},
      {with("rope_scaling", {{"type", "linear"}, {"factor", 2}, {"rope_theta", 7.0}}),
       "rope_theta"},
      {with("rope_parameters", {{"full_attention", Json::object()}}), "full_attention"},
  }));
  const auto [kind, sentence] = complaint(json);
  INFO(json.dump() << " -> " << sentence);
  CHECK(kind == ErrorKind::kRefused);
  CHECK_THAT(sentence, Catch::Contains(word));
}

namespace {

Json of_family(const char* architecture, const char* model_type,
               const Json& more = Json::object()) {
  Json config = small();
  config["architectures"] = {architecture};
  config["model_type"] = model_type;
  config.update(more);
  return config;
}
Json qwen2(const Json& more = Json::object()) {
  return of_family("Qwen2ForCausalLM", "qwen2", more);
}
Json qwen3(const Json& more = Json::object()) {
  return of_family("Qwen3ForCausalLM", "qwen3", more);
}
Json gemma3(const Json& more = Json::object()) {
  return of_family("Gemma3ForCausalLM", "gemma3_text", more);
}

using Layers = std::vector<bool>;

}  // namespace

TEST_CASE("Each family's defaults are Hugging Face's", "[model][MP-1]") {
  const ModelConfig second = ModelConfig::from_json(qwen2({{"num_key_value_heads", nullptr}}));
  CHECK(second.num_key_value_heads == 4);
  CHECK(second.head_dim == 8);
  CHECK(second.has_bias("self_attn.k_proj"));
  CHECK_FALSE(second.has_bias("self_attn.o_proj"));
  CHECK_FALSE(second.has_sliding_layers());

  const ModelConfig third = ModelConfig::from_json(qwen3({{"num_key_value_heads", 2}}));
  CHECK(third.head_dim == 128);
  CHECK_FALSE(third.has_bias("self_attn.q_proj"));
  CHECK(third.score_scale() == Approx(std::pow(128, -0.5)));

  Json sizes = gemma3({{"num_hidden_layers", 7}});
  sizes.erase("vocab_size");
  sizes.erase("num_attention_heads");
  const ModelConfig gemma = ModelConfig::from_json(sizes);
  CHECK(gemma.vocab_size == 262208);
  CHECK(gemma.num_attention_heads == 8);
  CHECK(gemma.num_key_value_heads == 4);
  CHECK(gemma.head_dim == 256);
  CHECK(gemma.activation == Activation::kGeluTanh);
  CHECK(gemma.tie_word_embeddings);
  CHECK(gemma.pad_token_id == 0);
  CHECK(gemma.rope_theta == 1e6);
  CHECK(gemma.rope_local_theta == 1e4);
  CHECK(gemma.score_scale() == 1.0 / 16);
  CHECK(gemma.embedding_scale() == Approx(std::sqrt(32.0)));
  CHECK(gemma.sliding_layers == Layers{true, true, true, true, true, false, true});
  CHECK(gemma.window_of_layer(0) == 4096);
  CHECK(gemma.window_of_layer(5) == 0);
  CHECK(ModelConfig::from_json(gemma3({{"pad_token_id", nullptr}})).pad_token_id == -1);
}

TEST_CASE("Windows that layers have not, and lists of layers that do not fit", "[model][MP-1]") {
  const Json used = {{"num_key_value_heads", 2},
                     {"num_hidden_layers", 3},
                     {"use_sliding_window", true},
                     {"sliding_window", 5}};
  const auto used_with = [&](const char* key, const Json& value) {
    Json config = used;
    config[key] = value;
    return config;
  };
  CHECK(ModelConfig::from_json(qwen2(used)).sliding_layers == Layers{false, false, false});
  CHECK_FALSE(
      ModelConfig::from_json(qwen3(used_with("sliding_window", nullptr))).has_sliding_layers());
  Json listed = used_with("layer_types", {"sliding_attention", "full_attention", "full_attention"});
  CHECK(ModelConfig::from_json(qwen3(listed)).window_of_layer(0) == 5);
  listed["use_sliding_window"] = false;
  CHECK_THAT(complaint(qwen3(listed)).second, Catch::Contains("there is no sliding window"));
  CHECK_THAT(complaint(qwen3(used_with("layer_types", {"sliding_attention"}))).second,
             Catch::Contains("names 1 layers"));
  const auto [kind, sentence] = complaint(
      qwen3(used_with("layer_types", {"sliding_attention", "full_attention", "full_atention"})));
  CHECK(kind == ErrorKind::kRefused);
  CHECK_THAT(sentence, Catch::Contains("\"full_attention\""));
  CHECK(complaint(qwen3(used_with("layer_types", "all"))).first == ErrorKind::kBadInput);
}

TEST_CASE("A Gemma that reads images too: its text part", "[model][MP-1]") {
  Json text = gemma3();
  text.erase("architectures");
  Json whole = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                {"model_type", "gemma3"},
                {"text_config", text},
                {"vision_config", {{"hidden_size", 8}}}};
  whole["tie_word_embeddings"] = false;
  CHECK_FALSE(ModelConfig::from_json(whole).tie_word_embeddings);
  whole["text_config"]["tie_word_embeddings"] = true;
  CHECK_THAT(complaint(whole).second, Catch::Contains("tie_word_embeddings"));
  whole.erase("text_config");
  CHECK_THAT(complaint(whole).second, Catch::Contains("'text_config' is missing"));
}

TEST_CASE("Names and options that belong to another family are not taken", "[model][MP-1]") {
  CHECK_THAT(complaint(of_family("Qwen2ForCausalLM", "qwen3")).second,
             Catch::Contains("model_type \"qwen2\", but \"qwen3\" is given"));
  CHECK(complaint(qwen2({{"num_key_value_heads", 2}, {"attention_bias", true}})).first ==
        ErrorKind::kRefused);
  CHECK(complaint(gemma3({{"mlp_bias", true}})).first == ErrorKind::kRefused);
  CHECK(complaint(gemma3({{"hidden_activation", "relu"}})).first == ErrorKind::kRefused);
  CHECK_THAT(complaint(gemma3({{"rope_parameters", {{"rope_type", "default"}}}})).second,
             Catch::Contains("kinds of layers"));
}

}  // namespace shardproof::config_test
