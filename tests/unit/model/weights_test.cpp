#include "model/weights.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "tensor/safetensors.h"

namespace shardproof::weights_test {
namespace {

namespace fs = std::filesystem;

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

// A folder that is deleted with the test.
class Folder {
 public:
  Folder()
      : path_(fs::temp_directory_path() / ("shardproof_weights_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

NamedTensors as_list(const WeightMap& weights) { return {weights.begin(), weights.end()}; }

std::string complaint(const std::string& folder, const ModelConfig& config) {
  try {
    load_weights(folder, config);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_FALSE(error.fix().empty());
    return error.what();
  }
  return "loaded";
}

}  // namespace

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
}

TEST_CASE("Seeded weights too large for a machine are a sentence", "[model]") {
  ModelConfig config = tiny();
  config.vocab_size = config.hidden_size = 1 << 20;
  CHECK_THROWS_AS(seeded_weights(config, 1), Error);
}

TEST_CASE("Weights come back from one file and from sharded files with an index", "[model]") {
  const Folder folder;
  const ModelConfig config = tiny();
  const auto weights = seeded_weights(config, 5);
  SECTION("one file") { write_safetensors(folder / "model.safetensors", as_list(*weights)); }
  SECTION("two files") {
    NamedTensors all = as_list(*weights), first(all.begin(), all.begin() + 7),
                 second(all.begin() + 7, all.end());
    nlohmann::json index;
    for (const auto& [name, tensor] : first) index["weight_map"][name] = "a.safetensors";
    for (const auto& [name, tensor] : second) index["weight_map"][name] = "b.safetensors";
    write_safetensors(folder / "a.safetensors", first);
    write_safetensors(folder / "b.safetensors", second);
    std::ofstream(folder / "model.safetensors.index.json") << index;
  }
  const auto loaded = load_weights(folder.path(), config);
  REQUIRE(loaded->size() == weights->size());
  for (const auto& [name, tensor] : *weights) CHECK(at::equal(loaded->at(name), tensor));
}

TEST_CASE("A tied model may store its head, if it is the embedding", "[model]") {
  const Folder folder;
  const ModelConfig config = tiny(/*tied=*/true);
  WeightMap weights = *seeded_weights(config, 5);
  weights["lm_head.weight"] = weights.at("model.embed_tokens.weight").clone();
  weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({2});
  write_safetensors(folder / "model.safetensors", as_list(weights));
  CHECK(load_weights(folder.path(), config)->count("lm_head.weight") == 0);
  weights["lm_head.weight"][3][2] += 1.0;
  write_safetensors(folder / "model.safetensors", as_list(weights));
  CHECK_THAT(complaint(folder.path(), config), Catch::Contains("differs"));
}

TEST_CASE("Weights that are not the config's are bad input, with a sentence", "[model]") {
  const Folder folder;
  const ModelConfig config = tiny();
  WeightMap weights = *seeded_weights(config, 5);
  for (auto& [name, tensor] : weights) tensor = tensor.clone();
  const std::string name = "model.layers.1.self_attn.v_proj.weight";
  std::string word;
  SECTION("missing") {
    weights.erase(name);
    word = "has no tensor '" + name + "'";
  }
  SECTION("misspelled") {
    weights["model.layers.1.self_attn.v_prj.weight"] = weights.at(name);
    weights.erase(name);
    word = "is it 'model.layers.1.self_attn.v_prj.weight'?";
  }
  SECTION("one too many") {
    weights["model.layers.2.self_attn.v_proj.weight"] = weights.at(name).clone();
    word = "model.layers.2.self_attn.v_proj.weight";
  }
  SECTION("a bias that the config has not") {
    weights["model.layers.0.self_attn.q_proj.bias"] = at::ones({12});
    word = "attention_bias";
  }
  SECTION("another shape") {
    weights[name] = at::ones({12, 4}, at::kDouble);
    word = "[12, 4], the config says [4, 12]";
  }
  SECTION("NaN") {
    weights.at(name)[2][5] = std::numeric_limits<double>::quiet_NaN();
    word = "1 elements that are not finite";
  }
  SECTION("infinite") {
    weights.at(name)[0] = std::numeric_limits<double>::infinity();
    word = "12 elements that are not finite";
  }
  SECTION("integers") {
    weights[name] = at::ones({4, 12}, at::kLong);
    word = "floating-point";
  }
  write_safetensors(folder / "model.safetensors", as_list(weights));
  CHECK_THAT(complaint(folder.path(), config), Catch::Contains(word));
}

TEST_CASE("A folder without weights or with a lying index is bad input", "[model]") {
  const Folder folder;
  CHECK_THAT(complaint(folder.path(), tiny()), Catch::Contains("neither"));
  const auto [text, word] = GENERATE(table<std::string, std::string>({
      {"{", "not JSON"},
      {"[]", "a JSON array"},
      {R"({"weight_map": 3})", "weight_map"},
      {R"({"weight_map": {"a": 3}})", "names no file"},
      {R"({"weight_map": {"a": "../../etc/passwd"}})", "names no file"},
      {R"({"weight_map": {"a": "missing.safetensors"}})", "missing.safetensors"},
  }));
  std::ofstream(folder / "model.safetensors.index.json") << text;
  CHECK_THAT(complaint(folder.path(), tiny()), Catch::Contains(word));
}

TEST_CASE("Each family has the weights of its own definition", "[model][MP-1]") {
  ModelConfig config = tiny();
  const std::string layer = "model.layers.1.";
  CHECK(weight_shapes(config).count(layer + "self_attn.q_norm.weight") == 0);
  config.family = "qwen2";
  const auto second = weight_shapes(config);
  CHECK(second.at(layer + "self_attn.v_proj.bias") == std::vector<int64_t>{4});
  CHECK(second.count(layer + "self_attn.o_proj.bias") == 0);
  config.family = "qwen3";
  const auto third = weight_shapes(config);
  CHECK(third.at(layer + "self_attn.k_norm.weight") == std::vector<int64_t>{4});
  CHECK(third.size() == 3 + 2 * 11);
  config.family = "gemma3";
  const auto gemma = weight_shapes(config);
  CHECK(gemma.at(layer + "post_feedforward_layernorm.weight") == std::vector<int64_t>{12});
  CHECK(gemma.size() == 3 + 2 * 13);
  // The norm multiplies by 1 + weight, so both kinds of norms scale by about 1.
  const auto drawn = seeded_weights(config, 5);
  CHECK(drawn->at("model.norm.weight").abs().mean().item<double>() < 0.5);
}

TEST_CASE("The text part of a model that reads images too, as transformers 4 and 5 name it",
          "[model][MP-2]") {
  const Folder folder;
  ModelConfig config = tiny(/*tied=*/GENERATE(false, true));
  config.family = "gemma3";
  const bool old_names = GENERATE(false, true);
  const auto weights = seeded_weights(config, 5);
  NamedTensors stored;
  for (const auto& [name, tensor] : *weights) {
    const bool head = name == "lm_head.weight";
    const std::string inner = head ? name : "model.language_model." + name.substr(6);
    stored.emplace_back(old_names ? "language_model." + name : inner, tensor);
  }
  const std::string outer = old_names ? "" : "model.";
  stored.emplace_back(outer + "vision_tower.embeddings.weight", at::ones({2, 3}));
  stored.emplace_back(outer + "multi_modal_projector.norm.weight", at::ones({2}));
  write_safetensors(folder / "model.safetensors", stored);
  const auto loaded = load_weights(folder.path(), config);
  REQUIRE(loaded->size() == weights->size());
  for (const auto& [name, tensor] : *weights) CHECK(at::equal(loaded->at(name), tensor));
}

}  // namespace shardproof::weights_test
