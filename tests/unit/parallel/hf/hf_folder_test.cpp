// The files of Hugging Face folders that a mesh writes. Scenarios (policy/life_cycle, from_folder)
// show that every rank gets its cut of a folder's weights.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "model/decoder.h"
#include "parallel/hf/save_weights.h"
#include "parallel/hf/scatter_weights.h"
#include "parallel/registry/styles.h"
#include "tests/support/rank_results.h"
#include "tests/support/scratch_folder.h"

namespace shardproof::tests {
namespace {

// No degree divides the vocabulary and the MLP; two ranks of tp share a kv head.
const nlohmann::json kConfig = {{"model_type", "gemma3_text"}, {"vocab_size", 37},
                                {"hidden_size", 12},           {"intermediate_size", 14},
                                {"num_hidden_layers", 2},      {"num_attention_heads", 4},
                                {"num_key_value_heads", 2},    {"head_dim", 4},
                                {"sliding_window", 3},         {"tie_word_embeddings", false}};

WeightMap bfloat16_weights() {
  WeightMap full = *seeded_weights(ModelConfig::from_json(kConfig), 9);
  for (auto& [name, tensor] : full) tensor = tensor.to(at::kBFloat16);
  return full;
}

// Deals weights to ranks of tp, whose parts dp ranks cut again as fsdp does, and writes them.
void deal_and_save(const WeightMap& full, const std::string& folder, int64_t max_file_bytes) {
  run_emulated_ranks(Mesh::training({.dp = 5, .tp = 4}), [&](MeshComm& comm, int64_t rank) {
    const ModelConfig config = ModelConfig::from_json(kConfig);
    Decoder model(config, weights_to_come(config));
    make_styles({}).apply(model, comm);
    const std::vector<ParameterPtr> parameters = model.parameters();
    for (const ParameterPtr& parameter : parameters) parameter->layout.append(Cut::chunk(0, "dp"));
    const auto pieces = scatter_weights(parameters, rank == 0 ? &full : nullptr, comm);
    save_weights(folder, kConfig, parameters, pieces,
                 {.max_file_bytes = max_file_bytes, .dtype = at::kBFloat16}, comm);
  });
}

}  // namespace

TEST_CASE("many files have an index, and replace a single one; and the other way", "[MP-2]") {
  const WeightMap full = bfloat16_weights();
  const sim::ScratchFolder folder;
  const auto path_of = [&](const std::string& name) { return folder.path() + "/" + name; };
  const auto has = [&](const std::string& name) { return std::filesystem::exists(path_of(name)); };
  const auto save = [&](int64_t max_file_bytes) {
    deal_and_save(full, folder.path(), max_file_bytes);
    std::ifstream in(path_of("config.json"));
    const auto loaded =
        load_weights(folder.path(), ModelConfig::from_json(nlohmann::json::parse(in)));
    CHECK(loaded->size() == full.size());
    for (const auto& [name, tensor] : full) CHECK(loaded->at(name).equal(tensor));
  };
  save(1 << 30);
  CHECK(has("model.safetensors"));
  CHECK_FALSE(has("model.safetensors.index.json"));
  save(1000);
  CHECK_FALSE(has("model.safetensors"));
  std::ifstream in(path_of("model.safetensors.index.json"));
  const nlohmann::json index = nlohmann::json::parse(in);
  CHECK(index["weight_map"].size() == full.size());
  std::set<std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) files.insert(file);
  CHECK(files.size() > 3);
  for (const std::string& file : files) {
    CHECK(has(file));
    CHECK(std::filesystem::file_size(path_of(file)) < 3000);
  }
  int64_t bytes = 0;
  for (const auto& [name, tensor] : full) bytes += static_cast<int64_t>(tensor.nbytes());
  CHECK(index["metadata"]["total_size"] == bytes);
  save(1 << 30);
  CHECK(has("model.safetensors"));
  CHECK_FALSE(has("model.safetensors.index.json"));
}

TEST_CASE("a folder that cannot be made is bad input", "[MP-2]") {
  CHECK_THROWS_AS(deal_and_save(bfloat16_weights(), "/dev/null/x", 1 << 30), Error);
}

}  // namespace shardproof::tests
