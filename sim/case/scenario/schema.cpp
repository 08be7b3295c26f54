#include "sim/case/scenario/schema.h"

#include <algorithm>
#include <utility>

namespace shardproof::sim {

namespace {

// Blocks and keys of other configurations, and their names here.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"policy", "run"},
    {"model_name", "model.folder"},
    {"num_layers", "model.num_hidden_layers"},
    {"n_layer", "model.num_hidden_layers"},
    {"num_heads", "model.num_attention_heads"},
    {"n_head", "model.num_attention_heads"},
    {"num_query_groups", "model.num_key_value_heads"},
    {"ffn_hidden_size", "model.intermediate_size"},
    // Source: NVIDIA-NeMo/RL examples/configs; volcengine/verl verl/trainer/config
    {"dtensor_cfg", "parallel"},
    {"megatron_cfg", "parallel"},
    {"ulysses_sequence_parallel_size", "parallel.ulysses_size"},
    {"ulysses_parallel_size", "parallel.ulysses_size"},
    // Source: NVIDIA/Megatron-LM megatron/core/model_parallel_config.py, ModelParallelConfig
    {"tensor_model_parallel_size", "parallel.tensor_parallel_size"},
    {"pipeline_model_parallel_size", "parallel.pipeline_parallel_size"},
    {"virtual_pipeline_model_parallel_size", "parallel.pp.chunks"},
    {"expert_model_parallel_size", "parallel.expert_parallel_size"},
    // Source: pytorch/torchtitan torchtitan/config/parallelism.py, ParallelismConfig
    {"parallelism", "parallel"},
    {"data_parallel_replicate_degree", "parallel.replicate_size"},
    {"data_parallel_shard_degree", "parallel.data_parallel_size"},
    {"tensor_parallel_degree", "parallel.tensor_parallel_size"},
    {"pipeline_parallel_degree", "parallel.pipeline_parallel_size"},
    {"context_parallel_degree", "parallel.context_parallel_size"},
    {"expert_parallel_degree", "parallel.expert_parallel_size"},
    {"expert_tensor_parallel_degree", "parallel.expert_tensor_parallel_size"}};

}  // namespace

Schema::Schema() {
  for (const CaseOption& option : case_options()) {
    if (!option.path.empty()) keys_.push_back(option);
  }
}

const Schema& case_schema() {
  static const Schema schema;
  return schema;
}

const CaseOption* Schema::find(std::string_view path) const {
  for (const CaseOption& key : keys_) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

bool Schema::is_block(std::string_view path) const {
  const std::string prefix = std::string(path) + ".";
  return std::any_of(keys_.begin(), keys_.end(),
                     [&](const Option& key) { return key.path.starts_with(prefix); });
}

std::vector<std::string> Schema::names_below(std::string_view block) const {
  const std::string prefix = block.empty() ? "" : std::string(block) + ".";
  std::vector<std::string> names;
  for (const Option& key : keys_) {
    if (!key.path.starts_with(prefix)) continue;
    const std::string rest = key.path.substr(prefix.size());
    const std::string name = rest.substr(0, rest.find('.'));
    if (name.find('[') != std::string::npos) continue;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

std::string Schema::path_named(const std::string& path, const std::string& block) const {
  const std::string name = path.substr(path.rfind('.') + 1);
  for (const auto& [theirs, ours] : kElsewhere) {
    if (theirs == name) return std::string(ours);
  }
  const auto first = [this](const auto& fits) -> std::string {
    for (const Option& key : keys_) {
      if (key.path.find('[') == std::string::npos && fits(key)) return key.path;
    }
    return "";
  };
  std::string found;
  if (!block.starts_with("reference")) {  // whose keys have the short names of others
    found = first([&](const Option& key) { return key.short_name == name; });
  }
  return found.empty() ? first([&](const Option& key) { return key.path.ends_with("." + name); })
                       : found;
}

}  // namespace shardproof::sim
