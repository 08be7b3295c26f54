#include "model/weights.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>

#include "tensor/safetensors.h"
#include "tests/support/said_by.h"
#include "tests/support/scratch_folder.h"

namespace shardproof::weights_test {
namespace {

ModelConfig tiny(bool tied = false, bool bias = false) {
  ModelConfig config;
  config.vocab_size = 11;
  config.hidden_size = 12;
  config.intermediate_size = 10;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.num_key_value_heads = 1;
  config.head_dim = 4;
  config.tie_word_embeddings = tied;
  config.attention_bias = config.mlp_bias = bias;
  return config;
}

void store(const sim::ScratchFolder& folder, const WeightMap& weights) {
  write_safetensors(folder.path() + "/model.safetensors", {weights.begin(), weights.end()});
}

std::string complaint(const std::string& folder, const ModelConfig& config) {
  return tests::told_by(ErrorKind::kBadInput, [&] { load_weights(folder, config); });
}

}  // namespace

TEST_CASE("Weights of single experts are stacked, under the names of both families",
          "[model][EP-13]") {
  ModelConfig config = tiny();
  config.family = "mixtral";
  config.router = {.num_experts = 11, .num_chosen = 2};  // 10 comes after 9, and not after 1
  config.expert_width = 12;                              // square: a transposed one has its shape
  config.expert_layers = {false, true};
  const auto stacked = seeded_weights(config, 5);
  const std::string layer = "model.layers.1.";
  const bool mixtral = GENERATE(true, false);
  const std::string block = layer + (mixtral ? "block_sparse_moe." : "mlp.");
  WeightMap single = *stacked;
  const at::Tensor gate_up = single.at(layer + "mlp.experts.gate_up_proj");
  const at::Tensor down = single.at(layer + "mlp.experts.down_proj");
  const at::Tensor router = single.at(layer + "mlp.gate.weight");
  for (const char* name :
       {"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"}) {
    single.erase(layer + name);
  }
  single[block + "gate.weight"] = router;
  for (int64_t j = 0; j < 11; ++j) {
    const std::string expert = block + "experts." + std::to_string(j) + ".";
    single[expert + (mixtral ? "w1.weight" : "gate_proj.weight")] = gate_up[j].narrow(0, 0, 12);
    single[expert + (mixtral ? "w3.weight" : "up_proj.weight")] = gate_up[j].narrow(0, 12, 12);
    single[expert + (mixtral ? "w2.weight" : "down_proj.weight")] = down[j];
  }
  const sim::ScratchFolder folder;
  const auto loads = [&](const WeightMap& weights) {
    store(folder, weights);
    return complaint(folder.path(), config);
  };
  CHECK(loads(single).empty());
  const auto loaded = load_weights(folder.path(), config);
  REQUIRE(loaded->size() == stacked->size());
  for (const auto& [name, tensor] : *stacked) CHECK(at::equal(loaded->at(name), tensor));
  CHECK(loads(*stacked).empty());

  const std::string up = mixtral ? "w3.weight" : "up_proj.weight";
  WeightMap wrong = single;
  wrong.erase(block + "experts.7." + up);
  CHECK_THAT(loads(wrong), Catch::Contains("has no tensor 'model.layers.1.mlp.experts.7." + up));
  wrong = single;
  wrong[block + "experts.7." + up] = at::zeros({12, 11}, at::kDouble);
  CHECK_THAT(loads(wrong), Catch::Contains("has shape [12, 11], the config says [12, 12]"));
  wrong = single;
  wrong[block + "experts.11." + up] = at::zeros({12, 12}, at::kDouble);
  CHECK_THAT(loads(wrong), Catch::Contains("experts.11." + up));
}

TEST_CASE("Seeded weights have every tensor of the config, no two elements equal", "[model]") {
  const ModelConfig config = tiny(/*tied=*/false, /*bias=*/true);
  const auto weights = seeded_weights(config, 5);
  const auto shapes = weight_shapes(config);
  REQUIRE(weights->size() == shapes.size());
  CHECK(shapes.size() == 3 + 2 * 16);
  CHECK(shapes.at("model.layers.1.self_attn.k_proj.weight") == std::vector<int64_t>{4, 12});
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : *weights) {
    CHECK(tensor.sizes().vec() == shapes.at(name));
    CHECK(tensor.scalar_type() == at::kDouble);
    all.push_back(tensor.flatten());
  }
  const at::Tensor values = std::get<0>(at::cat(all).sort());
  CHECK(values.diff().min().item<double>() > 0);
}

TEST_CASE("A seeded tensor depends on the seed and its own name only", "[model]") {
  const auto plain = seeded_weights(tiny(), 5), other_seed = seeded_weights(tiny(), 6);
  const auto biased = seeded_weights(tiny(/*tied=*/true, /*bias=*/true), 5);
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  CHECK(at::equal(plain->at(name), biased->at(name)));
  CHECK_FALSE(at::equal(plain->at(name), other_seed->at(name)));
  CHECK_FALSE(at::equal(plain->at(name), plain->at("model.layers.0.mlp.down_proj.weight")));
  CHECK(biased->count("lm_head.weight") == 0);
  // Gemma's norm multiplies by 1 + weight, so both kinds of norms scale by about 1.
  ModelConfig gemma = tiny();
  gemma.family = "gemma3";
  CHECK(seeded_weights(gemma, 5)->at("model.norm.weight").abs().mean().item<double>() < 0.5);
}

TEST_CASE("Seeded weights too large for a machine are a sentence", "[model]") {
  ModelConfig config = tiny();
  config.vocab_size = config.hidden_size = 1 << 20;
  CHECK_THROWS_AS(seeded_weights(config, 1), Error);
}

TEST_CASE("A tied model may store its head, if it is the embedding", "[model]") {
  const sim::ScratchFolder folder;
  const ModelConfig config = tiny(/*tied=*/true);
  WeightMap weights = *seeded_weights(config, 5);
  weights["lm_head.weight"] = weights.at("model.embed_tokens.weight").clone();
  weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({2});
  store(folder, weights);
  CHECK(load_weights(folder.path(), config)->count("lm_head.weight") == 0);
  weights["lm_head.weight"][3][2] += 1.0;
  store(folder, weights);
  CHECK_THAT(complaint(folder.path(), config), Catch::Contains("differs"));
}

TEST_CASE("The extra head of deepseek_v3 stays out of weights, or is read", "[model][PP-29]") {
  ModelConfig config = tiny();
  config.family = "deepseek_v3";
  config.num_key_value_heads = 3;
  config.latent = {.kv_rank = 5, .nope = 2, .rope = 2, .value = 4};
  config.extra_heads = 1;
  ModelConfig without = config;
  without.extra_heads = 0;
  const auto seeded = seeded_weights(config, 5);
  const sim::ScratchFolder folder;
  WeightMap stored = *seeded;
  stored["model.layers.2.embed_tokens.weight"] = stored.at("model.embed_tokens.weight").clone();
  stored["model.layers.2.shared_head.head.weight"] = stored.at("lm_head.weight").clone();
  store(folder, stored);
  CHECK(load_weights(folder.path(), without)->size() == weight_shapes(without).size());
  const auto loaded = load_weights(folder.path(), config);
  CHECK(loaded->size() == seeded->size());
  CHECK(at::equal(loaded->at("model.layers.2.eh_proj.weight"),
                  seeded->at("model.layers.2.eh_proj.weight")));
  stored["model.layers.2.shared_head.head.weight"] = stored.at("lm_head.weight") + 1;
  store(folder, stored);
  CHECK(complaint(folder.path(), config).find("head.weight differs from lm_head.weight") !=
        std::string::npos);
  CHECK(complaint(folder.path(), without).empty());
}

TEST_CASE("Weights that are not the config's are bad input, with a sentence", "[model]") {
  const std::string name = "model.layers.1.self_attn.v_proj.weight";
  using Change = std::function<void(WeightMap&)>;
  const auto [change, word] = GENERATE_COPY(table<Change, std::string>({
      {[=](WeightMap& weights) { weights.erase(name); }, "has no tensor '" + name + "'"},
      {[=](WeightMap& weights) {
         weights["model.layers.1.self_attn.v_prj.weight"] = weights.extract(name).mapped();
       },
       "is it 'model.layers.1.self_attn.v_prj.weight'?"},
      {[](WeightMap& weights) {
         weights["model.layers.2.self_attn.v_proj.weight"] = at::ones({4, 12});
       },
       "model.layers.2.self_attn.v_proj.weight"},
      {[](WeightMap& weights) { weights["model.layers.0.self_attn.q_proj.bias"] = at::ones({12}); },
       "attention_bias"},
      {[=](WeightMap& weights) {
         weights[name] = at::ones({12, 4}, at::kDouble);
       },
       "[12, 4], the config says [4, 12]"},
      {[=](WeightMap& weights) { weights[name][2][5] = std::numeric_limits<double>::quiet_NaN(); },
       "1 element that is not finite"},
      {[=](WeightMap& weights) { weights[name][0] = std::numeric_limits<double>::infinity(); },
       "12 elements that are not finite"},
      {[=](WeightMap& weights) {
         weights[name] = at::ones({4, 12}, at::kLong);
       },
       "floating-point"},
  }));
  const sim::ScratchFolder folder;
  WeightMap weights = *seeded_weights(tiny(), 5);
  for (auto& [_, tensor] : weights) tensor = tensor.clone();
  change(weights);
  store(folder, weights);
  CHECK_THAT(complaint(folder.path(), tiny()), Catch::Contains(word));
}

TEST_CASE("A folder without weights or with a lying index is bad input", "[model]") {
  const sim::ScratchFolder folder;
  CHECK_THAT(complaint(folder.path(), tiny()), Catch::Contains("neither"));
  const auto [text, word] = GENERATE(table<std::string, std::string>({
      {"{", "not JSON"},
      {"[]", "a JSON array"},
      {R"({"weight_map": 3})", "weight_map"},
      {R"({"weight_map": {"a": 3}})", "names no file"},
      {R"({"weight_map": {"a": "../../etc/passwd"}})", "names no file"},
      {R"({"weight_map": {"a": "missing.safetensors"}})", "missing.safetensors"},
  }));
  folder.write("model.safetensors.index.json", text);
  CHECK_THAT(complaint(folder.path(), tiny()), Catch::Contains(word));
}

TEST_CASE("The text part of a model that reads images too, as transformers 4 and 5 name it",
          "[model][MP-2]") {
  const sim::ScratchFolder folder;
  ModelConfig config = tiny(/*tied=*/GENERATE(false, true));
  config.family = "gemma3";
  const bool old_names = GENERATE(false, true);
  const auto weights = seeded_weights(config, 5);
  WeightMap stored;
  for (const auto& [name, tensor] : *weights) {
    const bool head = name == "lm_head.weight";
    const std::string inner = head ? name : "model.language_model." + name.substr(6);
    stored[old_names ? "language_model." + name : inner] = tensor;
  }
  const std::string outer = old_names ? "" : "model.";
  stored[outer + "vision_tower.embeddings.weight"] = at::ones({2, 3});
  stored[outer + "multi_modal_projector.norm.weight"] = at::ones({2});
  store(folder, stored);
  const auto loaded = load_weights(folder.path(), config);
  REQUIRE(loaded->size() == weights->size());
  for (const auto& [name, tensor] : *weights) CHECK(at::equal(loaded->at(name), tensor));
}

}  // namespace shardproof::weights_test
