// The golden equals Hugging Face transformers in float64 (golden/hf/make.py): logprobs, loss, every
// gradient, the norm, and the parameters after three clipped optimizer steps.
#include <ATen/ATen.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "sim/case/case_spec.h"
#include "sim/case/runners.h"
#include "sim/case/scenario/case_folder.h"
#include "tensor/safetensors.h"

namespace shardproof::golden {
namespace {

namespace fs = std::filesystem;

constexpr double kAgreement = 1e-11;  // of each tensor's scale

std::vector<std::string> case_folders() {
  std::vector<std::string> folders;
  for (const auto& entry : fs::directory_iterator("golden/hf")) {
    if (fs::exists(entry.path() / "case.json")) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

// The golden's tensors under the names of expected.safetensors.
SafetensorsFile golden_answers(const sim::CaseSpec& spec) {
  const std::string unique = std::to_string(::getpid()) + ".safetensors";
  const fs::path dump = fs::temp_directory_path() / ("shardproof_golden_" + unique);
  golden_main(spec, Members::kDue, /*golden_fd=*/-1, dump.string());
  SafetensorsFile answers = SafetensorsFile::open(dump.string());
  fs::remove(dump);
  return answers;
}

}  // namespace

TEST_CASE("The golden equals Hugging Face transformers in true float64", "[golden][MP-1]") {
  const std::vector<std::string> folders = case_folders();
  REQUIRE(folders.size() >= 14);
  for (const std::string& folder : folders) {
    INFO(folder);
    const SafetensorsFile expected = SafetensorsFile::open(folder + "/expected.safetensors");
    const SafetensorsFile golden = golden_answers(sim::read_case_folder(folder));
    const std::set<std::string> wanted(expected.names().begin(), expected.names().end());
    CHECK(std::set<std::string>(golden.names().begin(), golden.names().end()) == wanted);
    for (const std::string& name : expected.names()) {
      INFO(name);
      const at::Tensor truth = expected.get(name), ours = golden.get(name);
      REQUIRE(ours.scalar_type() == at::kDouble);
      REQUIRE(ours.sizes() == truth.sizes());
      const double scale = truth.abs().max().item<double>();
      const double error = (ours - truth).abs().max().item<double>();
      CHECK(error <= kAgreement * scale);  // false for NaN
    }
  }
}

TEST_CASE("The pin notices each detail of the model that a config can name", "[golden][MP-1]") {
  const auto [folder, key, value] = GENERATE(table<std::string, std::string, nlohmann::json>({
      {"llama_untied", "/rope_parameters/rope_theta", 501.0},
      {"llama_untied", "/rms_norm_eps", 2e-5},
      {"llama_tied_gqa_padding_row", "/pad_token_id", 4},
      {"llama_rope_llama3", "/rope_parameters/low_freq_factor", 1.5},
      {"llama_rope_llama3", "/rope_parameters/high_freq_factor", 3.0},
      {"llama_rope_llama3_v4", "/rope_scaling/factor", 4.0},
      {"llama_rope_linear_sgd", "/rope_scaling/factor", 2.0},
      {"qwen2_tied_window_of_last_layer", "/sliding_window", 5},
      {"qwen2_tied_window_of_last_layer", "/max_window_layers", 0},
      {"qwen2_tied_window_of_last_layer", "/use_sliding_window", false},
      {"qwen3_head_dim_bias", "/rms_norm_eps", 2e-5},
      {"qwen3_head_dim_bias", "/rope_parameters/rope_theta", 91.0},
      {"qwen3_tied_layer_types_sgd", "/layer_types/1", "sliding_attention"},
      {"qwen3_tied_layer_types_sgd", "/sliding_window", 4},
      {"gemma3_window_pattern", "/sliding_window", 5},
      {"gemma3_window_pattern", "/sliding_window_pattern", 3},
      {"gemma3_window_pattern", "/rope_theta", 201.0},
      {"gemma3_window_pattern", "/rope_local_base_freq", 20.1},
      {"gemma3_window_pattern", "/rope_scaling/factor", 4.1},
      {"gemma3_window_pattern", "/query_pre_attn_scalar", 21},
      {"gemma3_window_pattern", "/hidden_activation", "silu"},
      {"gemma3_window_pattern", "/pad_token_id", 5},
      {"gemma3_untied_layer_types", "/rope_parameters/full_attention/factor", 8.1},
      {"gemma3_untied_layer_types", "/rope_parameters/sliding_attention/rope_theta", 30.1},
      {"gemma3_untied_layer_types", "/layer_types/2", "full_attention"},
      {"gemma3_images", "/text_config/rope_local_base_freq", 20.1},
  }));
  INFO(folder << " " << key);
  sim::CaseSpec spec = sim::read_case_folder("golden/hf/" + folder);
  spec.model[nlohmann::json::json_pointer(key)] = value;
  const SafetensorsFile expected =
      SafetensorsFile::open("golden/hf/" + folder + "/expected.safetensors");
  const SafetensorsFile golden = golden_answers(spec);
  const std::string name = "grad.model.embed_tokens.weight";
  const at::Tensor truth = expected.get(name);
  const double error = (golden.get(name) - truth).abs().max().item<double>();
  CHECK(error > 1e3 * kAgreement * truth.abs().max().item<double>());
}

}  // namespace shardproof::golden
