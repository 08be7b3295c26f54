#include "model/weights.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/count_of.h"
#include "base/error.h"
#include "base/weight_files.h"
#include "model/config_experts.h"
#include "model/expert_weights.h"
#include "tensor/safetensors.h"

namespace shardproof {
namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

// Rotary frequencies (of old checkpoints), which the config gives, and vision parts of a model.
bool ignorable(const std::string& name) {
  const std::string own = name.starts_with("model.") ? name.substr(6) : name;
  return name.ends_with(".rotary_emb.inv_freq") || own.starts_with("vision_tower.") ||
         own.starts_with("multi_modal_projector.");
}

// The extra head in folders of deepseek_v3, which stays out unless the case asks for it.
bool is_unwanted_head(const std::string& name, const ModelConfig& config) {
  const std::string layers = "model.layers.";
  if (!config.traits().latent_attention || config.extra_heads > 0) return false;
  if (!name.starts_with(layers)) return false;
  const std::string number =
      name.substr(layers.size(), name.find('.', layers.size()) - layers.size());
  return number == std::to_string(config.num_hidden_layers);
}

// A model that also reads images keeps its text part under a prefix: transformers 4 writes
// "language_model.model." and "language_model.lm_head.", 5 writes "model.language_model.".
std::string text_name(const std::string& name) {
  const std::string_view outer = "language_model.", inner = "model.language_model.";
  if (name.starts_with(outer)) return name.substr(outer.size());
  return name.starts_with(inner) ? "model." + name.substr(inner.size()) : name;
}

void check_tensor(const std::string& name, const at::Tensor& tensor,
                  const std::vector<int64_t>& shape) {
  if (tensor.sizes().vec() != shape) {
    throw_bad_input(fmt::format("weight '{}' has shape [{}], the config says [{}]", name,
                                fmt::join(tensor.sizes(), ", "), fmt::join(shape, ", ")),
                    "config.json and the weights must come from the same model");
  }
  if (!at::isFloatingType(tensor.scalar_type())) {
    throw_bad_input(fmt::format("weight '{}' holds {}", name, c10::toString(tensor.scalar_type())),
                    "store it in a floating-point dtype");
  }
  const int64_t bad_count = tensor.numel() - at::isfinite(tensor).sum().item<int64_t>();
  if (bad_count > 0) {
    throw_bad_input(
        fmt::format("weight '{}' has {} that {} not finite, of {}", name,
                    count_of(bad_count, "element"), bad_count == 1 ? "is" : "are", tensor.numel()),
        "a model with NaN or infinite weights cannot be judged");
  }
}

// A tied model stores the shared matrix once; a second copy must be equal.
void take_tied_head(WeightMap& weights) {
  const auto head = weights.find("lm_head.weight");
  if (head == weights.end()) return;
  const auto embedding = weights.find("model.embed_tokens.weight");
  if (embedding != weights.end() && !at::equal(head->second, embedding->second)) {
    throw_bad_input(
        "lm_head.weight differs from model.embed_tokens.weight, but tie_word_embeddings is true",
        "store the matrix once, or set tie_word_embeddings to false");
  }
  weights.erase(head);
}

// Folders of deepseek_v3 have copies of the embedding and the head in each extra head.
void take_copies_in_heads(WeightMap& weights, const ModelConfig& config) {
  const std::string embedding = "model.embed_tokens.weight",
                    head = config.tie_word_embeddings ? embedding : "lm_head.weight";
  for (int64_t i = config.num_hidden_layers; i < config.layers_with_heads(); ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    for (const auto& [copy, original] : {std::pair(layer + "embed_tokens.weight", embedding),
                                         std::pair(layer + "shared_head.head.weight", head)}) {
      const auto found = weights.find(copy), model = weights.find(original);
      if (found == weights.end()) continue;
      if (model != weights.end() && !at::equal(found->second, model->second)) {
        throw_bad_input(fmt::format("{} differs from {}, which all extra heads share with the "
                                    "model",
                                    copy, original),
                        "store equal matrices, or leave the copy out");
      }
      weights.erase(found);
    }
  }
}

void check_names(const WeightMap& weights, const Shapes& shapes, const std::string& folder) {
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : weights) {
    if (shapes.count(name) == 0) unexpected.push_back(name);
  }
  for (const auto& [name, shape] : shapes) {
    if (weights.count(name) != 0) continue;
    const std::string near = nearest_name(name, unexpected);
    throw_bad_input(
        fmt::format("'{}' has no tensor '{}'", folder, name),
        near.empty() ? "add it, or mend config.json" : fmt::format("is it '{}'?", near));
  }
  if (!unexpected.empty()) {
    throw_bad_input(
        fmt::format("'{}' has a tensor '{}' that a model of this config has not", folder,
                    unexpected.front()),
        "remove it, or mend config.json (tie_word_embeddings, attention_bias, mlp_bias, "
        "num_hidden_layers)");
  }
}

}  // namespace

std::map<std::string, std::vector<int64_t>> weight_shapes(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size, mlp = config.intermediate_size,
                shared = config.shared_width;
  const int64_t heads = config.num_attention_heads, q_size = heads * config.head_dim;
  const LatentSizes& latent = config.latent;
  const int64_t kv_size = config.num_key_value_heads * config.head_dim;
  const Shapes linears = {
      {"self_attn.q_proj", {q_size, hidden}},
      {"self_attn.k_proj", {kv_size, hidden}},
      {"self_attn.v_proj", {kv_size, hidden}},
      {"self_attn.o_proj", {hidden, heads * config.value_dim()}},
      {"self_attn.q_a_proj", {latent.q_rank, hidden}},
      {"self_attn.q_b_proj", {q_size, latent.q_rank}},
      {"self_attn.kv_a_proj_with_mqa", {latent.kv_rank + latent.rope, hidden}},
      {"self_attn.kv_b_proj", {heads * (latent.nope + latent.value), latent.kv_rank}},
      {"eh_proj", {hidden, 2 * hidden}},
      {"mlp.gate_proj", {mlp, hidden}},
      {"mlp.up_proj", {mlp, hidden}},
      {"mlp.down_proj", {hidden, mlp}},
      {"mlp.shared_expert.gate_proj", {shared, hidden}},
      {"mlp.shared_expert.up_proj", {shared, hidden}},
      {"mlp.shared_expert.down_proj", {hidden, shared}},
      {"mlp.shared_experts.gate_proj", {shared, hidden}},
      {"mlp.shared_experts.up_proj", {shared, hidden}},
      {"mlp.shared_experts.down_proj", {hidden, shared}},
      {"mlp.shared_expert_gate", {1, hidden}}};
  Shapes shapes;
  shapes["model.embed_tokens.weight"] = {config.vocab_size, hidden};
  for (int64_t i = 0; i < config.layers_with_weights(); ++i) {
    for (const auto& [part, role] : layer_slots(config, i)) {
      const std::string name = fmt::format("model.layers.{}.{}", i, part);
      if (const auto linear = linears.find(part); linear != linears.end()) {
        shapes[name + ".weight"] = linear->second;
        if (config.has_bias(part)) shapes[name + ".bias"] = {linear->second[0]};
      } else if (role == SlotRole::kRouter) {
        shapes[name + ".weight"] = {config.router.num_experts, hidden};
        if (config.traits().router_bias) shapes[name + ".bias"] = {config.router.num_experts};
        if (!config.router.selection_bias) continue;
        shapes[name + ".e_score_correction_bias"] = {config.router.num_experts};
      } else if (role == SlotRole::kExperts) {
        const int64_t experts = config.router.num_experts, width = config.expert_width;
        const bool in_turn = config.expert_form().columns_in_turn;
        shapes[name + ".gate_up_proj"] = {experts, in_turn ? hidden : 2 * width,
                                          in_turn ? 2 * width : hidden};
        shapes[name + ".down_proj"] = {experts, in_turn ? width : hidden, in_turn ? hidden : width};
        if (!in_turn) continue;
        shapes[name + ".gate_up_proj_bias"] = {experts, 2 * width};
        shapes[name + ".down_proj_bias"] = {experts, hidden};
      } else if (role == SlotRole::kAttention) {
        if (!config.traits().sinks) continue;
        shapes[fmt::format("model.layers.{}.self_attn.sinks", i)] = {config.num_attention_heads};
      } else if (role == SlotRole::kLatentNorm) {
        shapes[name + ".weight"] = {part == "self_attn.q_a_layernorm" ? latent.q_rank
                                                                      : latent.kv_rank};
      } else if (kind_of(role) == SlotKind::kNorm && !is_on_stream(role)) {
        shapes[name + ".weight"] = {config.head_dim};
      } else if (is_on_stream(role) && role != SlotRole::kResidual) {
        shapes[name + ".weight"] = {hidden};
      }
    }
  }
  shapes["model.norm.weight"] = {hidden};
  if (!config.tie_word_embeddings) shapes["lm_head.weight"] = {config.vocab_size, hidden};
  return shapes;
}

std::shared_ptr<const WeightMap> weights_to_come(const ModelConfig& config) {
  auto weights = std::make_shared<WeightMap>();
  const at::Tensor zero = at::zeros({}, at::kDouble);
  for (const auto& [name, shape] : weight_shapes(config)) (*weights)[name] = zero.expand(shape);
  return weights;
}

std::shared_ptr<const WeightMap> load_weights(const std::string& folder,
                                              const ModelConfig& config) {
  auto weights = std::make_shared<WeightMap>();
  for (const std::string& path : weight_files(folder)) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const std::string& name : file.names()) {
      if (ignorable(name) || is_unwanted_head(name, config)) continue;
      if (!weights->emplace(text_name(name), file.get(name)).second) {
        throw_bad_input(fmt::format("'{}' stores tensor '{}' in two files", folder, name),
                        "save the model again");
      }
    }
  }
  if (config.tie_word_embeddings) take_tied_head(*weights);
  take_copies_in_heads(*weights, config);
  stack_expert_weights(*weights, config, folder);
  const Shapes shapes = weight_shapes(config);
  for (const auto& [name, shape] : shapes) {
    if (is_added_bias(config, name)) weights->emplace(name, at::zeros(shape, at::kDouble));
  }
  check_names(*weights, shapes, folder);
  for (const auto& [name, shape] : shapes) check_tensor(name, weights->at(name), shape);
  return weights;
}

}  // namespace shardproof
