// Hugging Face folders and meshes: rank 0 alone reads a folder and every rank gets its cut; any
// mesh writes the model that it was given.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "base/error.h"
#include "model/decoder.h"
#include "model/precision.h"
#include "parallel/hf/save_weights.h"
#include "parallel/hf/scatter_weights.h"
#include "parallel/registry/styles.h"
#include "tensor/safetensors.h"
#include "tensor/shard.h"
#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {
namespace {

namespace fs = std::filesystem;
using RunRanks = std::function<void(const Mesh&, const RankFunction&)>;

// A folder that is deleted with the test.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_((fs::temp_directory_path() / (name + std::to_string(::getpid()))).string()) {
    fs::remove_all(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// No degree divides the vocabulary and the MLP, and ranks of tp = 4 share kv heads.
nlohmann::json config_json(const std::string& model_type) {
  const nlohmann::json window = model_type == "llama" ? nlohmann::json() : nlohmann::json(3);
  return {{"model_type", model_type}, {"vocab_size", 37},
          {"hidden_size", 12},        {"intermediate_size", 14},
          {"num_hidden_layers", 2},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"head_dim", 4},
          {"sliding_window", window}, {"tie_word_embeddings", model_type == "qwen2"}};
}

// A decoder cut over the mesh; with shard_dp, dp ranks cut the parts again, as fsdp does.
struct Cut3 {
  Cut3(const nlohmann::json& json, MeshComm& comm, bool shard_dp)
      : config(ModelConfig::from_json(json)), model(config, weights_to_come(config)) {
    make_styles({}).apply(model, comm);
    parameters = model.parameters();
    for (const ParameterPtr& parameter : parameters) {
      if (shard_dp) parameter->layout.append(Cut::chunk(0, "dp"));
    }
  }
  ModelConfig config;
  Decoder model;
  std::vector<ParameterPtr> parameters;
};

struct Trip {
  Mesh mesh;
  bool shard_dp = false;
  int64_t max_file_bytes = int64_t{1} << 30;
  at::ScalarType dtype = at::kDouble;
};

// Distributes `full` over the mesh and writes it from there. Returns the errors of the ranks.
std::string deal_and_save(const Trip& trip, const nlohmann::json& json, const WeightMap& full,
                          const std::string& folder, const RunRanks& run) {
  std::vector<std::string> complaints(static_cast<size_t>(trip.mesh.world_size()));
  run(trip.mesh, [&](MeshComm& comm, int64_t rank) {
    Cut3 cut_model(json, comm, trip.shard_dp);
    const std::vector<at::Tensor> pieces =
        scatter_weights(cut_model.parameters, rank == 0 ? &full : nullptr, comm);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Parameter& parameter = *cut_model.parameters[i];
      const at::Tensor wanted = cut(full.at(parameter.name), parameter.layout, trip.mesh, rank);
      if (!at::equal(pieces[i], wanted)) {
        complaints[static_cast<size_t>(rank)] += parameter.name + " is another piece\n";
      }
    }
    save_weights(folder, json, cut_model.parameters, pieces,
                 {.max_file_bytes = trip.max_file_bytes, .dtype = trip.dtype}, comm);
  });
  return std::accumulate(complaints.begin(), complaints.end(), std::string());
}

std::string wrong_trip(const Trip& trip, const std::string& model_type,
                       const RunRanks& run = run_emulated_ranks) {
  const nlohmann::json json = config_json(model_type);
  const ModelConfig config = ModelConfig::from_json(json);
  WeightMap full = *seeded_weights(config, 9);
  for (auto& [name, tensor] : full) tensor = tensor.to(trip.dtype);
  const Folder folder("shardproof_hf_");
  std::string wrong = deal_and_save(trip, json, full, folder.path(), run);
  std::ifstream in(folder.path() + "/config.json");
  const ModelConfig saved = ModelConfig::from_json(nlohmann::json::parse(in));
  const auto loaded = load_weights(folder.path(), saved);
  if (loaded->size() != full.size()) wrong += "another number of tensors\n";
  for (const auto& [name, tensor] : full) {
    if (!at::equal(loaded->at(name), tensor)) wrong += name + " came back as another\n";
  }
  return wrong;
}

}  // namespace

TEST_CASE("each rank is given its cut, and any mesh writes the whole model", "[MP-2]") {
  for (const char* model_type : {"llama", "qwen2", "qwen3", "gemma3_text"}) {
    INFO(model_type);
    CHECK(wrong_trip({.mesh = Mesh()}, model_type) == "");
    CHECK(wrong_trip({.mesh = Mesh::training({.tp = 4})}, model_type) == "");
    CHECK(wrong_trip({.mesh = Mesh::training({.dp = 2, .cp = 2, .tp = 2}), .shard_dp = true},
                     model_type) == "");
    CHECK(wrong_trip({.mesh = Mesh::training({.dp = 5, .tp = 2}), .shard_dp = true}, model_type) ==
          "");
  }
}

TEST_CASE("over Gloo, in bfloat16, in many files", "[MP-2]") {
  const Trip trip{.mesh = Mesh::training({.dp = 2, .tp = 2}),
                  .shard_dp = true,
                  .max_file_bytes = 1000,
                  .dtype = at::kBFloat16};
  CHECK(wrong_trip(trip, "gemma3_text", run_gloo_ranks) == "");
}

TEST_CASE("many files have an index, and replace a single one; and the other way", "[MP-2]") {
  const nlohmann::json json = config_json("qwen3");
  const WeightMap full = *seeded_weights(ModelConfig::from_json(json), 9);
  const Folder folder("shardproof_hf_files_");
  const auto has = [&](const std::string& name) { return fs::exists(folder.path() + "/" + name); };
  const auto save = [&](int64_t max_file_bytes) {
    const Trip trip{.mesh = Mesh::training({.tp = 2}), .max_file_bytes = max_file_bytes};
    CHECK(deal_and_save(trip, json, full, folder.path(), run_emulated_ranks) == "");
  };
  save(1 << 30);
  CHECK(has("model.safetensors"));
  CHECK_FALSE(has("model.safetensors.index.json"));
  save(4000);
  CHECK_FALSE(has("model.safetensors"));
  std::ifstream in(folder.path() + "/model.safetensors.index.json");
  const nlohmann::json index = nlohmann::json::parse(in);
  CHECK(index["weight_map"].size() == full.size());
  std::set<std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) files.insert(file);
  CHECK(files.size() > 3);
  for (const std::string& file : files) {
    CHECK(has(file));
    CHECK(fs::file_size(folder.path() + "/" + file) < 6000);
  }
  int64_t bytes = 0;
  for (const auto& [name, tensor] : full) bytes += static_cast<int64_t>(tensor.nbytes());
  CHECK(index["metadata"]["total_size"] == bytes);
  save(1 << 30);
  CHECK(has("model.safetensors"));
  CHECK_FALSE(has("model.safetensors.index.json"));
}

TEST_CASE("a folder that cannot be made is bad input", "[MP-2]") {
  const nlohmann::json json = config_json("llama");
  const WeightMap full = *seeded_weights(ModelConfig::from_json(json), 9);
  CHECK_THROWS_AS(deal_and_save({.mesh = Mesh()}, json, full, "/dev/null/x", run_emulated_ranks),
                  Error);
}

}  // namespace shardproof::tests
