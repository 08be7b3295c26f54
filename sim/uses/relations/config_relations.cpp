// Relations of models with other configs that compute the same.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "sim/uses/relations/relations.h"

namespace shardproof::sim::relations {

namespace {

// --- kv_heads_repeated
std::string shares_kv_heads(const CaseSpec&, const ModelConfig& config) {
  const bool shares = config.num_key_value_heads < config.num_attention_heads;
  return shares ? "" : "every query head has its own kv head";
}

void give_each_its_kv_head(Variant& first, Variant& second) {
  set_model_key(second, "num_key_value_heads", first.config.num_attention_heads);
  const int64_t group = first.config.num_attention_heads / first.config.num_key_value_heads;
  const TensorMap repeat = repeated_heads(first.config.head_dim, group);
  for (auto& [name, weight] : second.weights) {
    const bool of_keys = name.find(".k_proj.") != name.npos;
    if (of_keys || name.find(".v_proj.") != name.npos) weight = repeat.change(weight);
  }
}

void sum_kv_heads(const Variant& first, const Variant&, Values&, Values& b) {
  const int64_t group = first.config.num_attention_heads / first.config.num_key_value_heads;
  const TensorMap repeat = repeated_heads(first.config.head_dim, group);
  for (auto& [name, grad] : b) {
    const bool of_keys = name.find(".k_proj.") != name.npos;
    if (of_keys || name.find(".v_proj.") != name.npos) grad = repeat.back(grad);
  }
}

// --- embedding_untied
std::string is_tied(const CaseSpec& spec, const ModelConfig& config) {
  if (!config.tie_word_embeddings) return "the embedding is not tied";
  return spec.frozen.empty() ? "" : "some parameters are not trained";
}

void untie(Variant&, Variant& second) {
  nlohmann::json& model = second.spec.model;
  model["tie_word_embeddings"] = false;
  set_model_key(second, "tie_word_embeddings", false);
  second.weights["lm_head.weight"] = second.weights.at("model.embed_tokens.weight");
}

void sum_tied(const Variant&, const Variant&, Values&, Values& b) {
  const auto head = b.find(gradient_of("lm_head.weight"));
  if (head == b.end()) return;
  at::Tensor& embedding = b.at(gradient_of("model.embed_tokens.weight"));
  embedding = embedding + head->second;
  b.erase(head);
}

// --- head_dim_doubled: pair i of a head becomes pair 2i, which turns as fast; the others are 0.
void double_head_dim(Variant& first, Variant& second) {
  set_model_key(second, "head_dim", 2 * first.config.head_dim);
}

// The new row of each row of `heads` heads of `head_dim`.
std::vector<int64_t> spread_pairs(int64_t heads, int64_t head_dim) {
  std::vector<int64_t> places;
  const int64_t half = head_dim / 2;
  for (int64_t row = 0; row < heads * head_dim; ++row) {
    const int64_t head = row / head_dim, in_head = row % head_dim;
    places.push_back(head * 2 * head_dim + (in_head / half) * head_dim + 2 * (in_head % half));
  }
  return places;
}

void spread_heads(const Variant& second, WeightMaps& maps) {
  const ModelConfig& config = second.config;
  const int64_t head_dim = config.head_dim / 2;
  const auto queries = spread_pairs(config.num_attention_heads, head_dim);
  const auto keys = spread_pairs(config.num_key_value_heads, head_dim);
  const int64_t rows = config.num_attention_heads * config.head_dim;
  const int64_t key_rows = config.num_key_value_heads * config.head_dim;
  // Scores are divided by the root of head_dim.
  maps.add_rows("self_attn.q_proj", placed(0, queries, rows, std::sqrt(2.0)));
  maps.add_rows("self_attn.k_proj", placed(0, keys, key_rows));
  maps.add_rows("self_attn.v_proj", placed(0, keys, key_rows));
  maps.add_columns("self_attn.o_proj", placed(1, queries, rows));
}

// --- residual_widened: the new dims of the residual stream are 0, so that norms divide by half.
constexpr int64_t kWider = 4;

void widen(Variant& first, Variant& second) {
  set_model_key(second, "head_dim", first.config.head_dim);
  set_model_key(second, "hidden_size", kWider * first.config.hidden_size);
  set_model_key(second, "rms_norm_eps", first.config.rms_norm_eps / kWider);
}

// Those of the old dims, in other places than the first ones.
std::vector<int64_t> spread_dims(int64_t count) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < count; ++i) places.push_back(kWider * i + i % kWider);
  return places;
}

void widen_weights(const Variant& second, WeightMaps& maps) {
  const ModelConfig& config = second.config;
  const FamilyTraits& family = config.traits();
  const int64_t size = config.hidden_size;
  const std::vector<int64_t> places = spread_dims(size / kWider);
  const double root = std::sqrt(static_cast<double>(kWider));
  // A scaled embedding is multiplied by the root of the size.
  const double embedding = family.scaled_embedding ? 1 / root : 1;
  const bool offset = family.unit_offset_norm;
  maps.add("model.embed_tokens.weight", placed(1, places, size, embedding));
  if (!config.tie_word_embeddings) maps.add("lm_head.weight", placed(1, places, size));
  for (const char* part : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                           "mlp.gate_proj", "mlp.up_proj"}) {
    maps.add_columns(part, placed(1, places, size));
  }
  for (const char* part : {"self_attn.o_proj", "mlp.down_proj"}) {
    maps.add_rows(part, placed(0, places, size));
  }
  maps.add_norms(norm_scaled(1 / root, offset));
  if (config.tie_word_embeddings) {
    maps.add("model.norm.weight", norm_scaled(1 / embedding, offset));
  }
  maps.add_norms(placed(0, places, size));
  if (family.qk_norm) {  // their eps has shrunk too
    for (const char* part : {"self_attn.q_proj", "self_attn.k_proj"}) {
      maps.add_rows(part, scaled(1 / root));
    }
  }
}

// --- layer_added: a first layer that adds 0.
std::string may_move_layers(const CaseSpec& spec, const ModelConfig&) {
  if (!spec.frozen.empty()) return "some parameters are not trained";
  return spec.parallel.custom_plan.is_null() ? "" : "the plan names layers";
}

const std::string kLayers = "model.layers.";

// "model.layers.3.mlp.up_proj.weight" with another layer; other names stay.
std::string of_layer(const std::string& name, int64_t moved_by) {
  const size_t begin = name.find(kLayers);
  if (begin == name.npos) return name;
  const size_t digits = begin + kLayers.size(), end = name.find('.', digits);
  const int64_t layer = std::stoll(name.substr(digits, end - digits)) + moved_by;
  return name.substr(0, digits) + std::to_string(layer) + name.substr(end);
}

void add_layer(Variant& first, Variant& second) {
  const ModelConfig& config = first.config;
  set_model_key(second, "layer_types", nullptr);
  set_model_key(second, "num_hidden_layers", config.num_hidden_layers + 1);
  if (config.traits().window != WindowRule::kNone) {
    std::vector<bool> sliding = config.sliding_layers;
    sliding.resize(static_cast<size_t>(config.num_hidden_layers), false);
    sliding.insert(sliding.begin(), false);
    set_windows(second, sliding, std::max<int64_t>(1, config.sliding_window));
  }
  second.weights.clear();
  for (const auto& [name, weight] : first.weights) {
    second.weights[of_layer(name, 1)] = weight;
    if (!name.starts_with(kLayers + "0.")) continue;
    const bool adds = name.find(".o_proj.") != name.npos || name.find(".down_proj.") != name.npos;
    second.weights[name] = adds ? at::zeros_like(weight) : weight.flip(0).contiguous();
  }
}

void drop_layer(const Variant&, const Variant&, Values&, Values& b) {
  Values kept;
  for (const auto& [name, value] : b) {
    const ObservationKind kind = kind_of_value(name);
    const bool added =
        kind == ObservationKind::kGradient && parameter_of(kind, name).starts_with(kLayers + "0.");
    if (!added) kept[of_layer(name, -1)] = value;
  }
  b = kept;
}

// --- Relations of windows, which a llama takes as a qwen2 with biases of 0.
std::string may_have_windows(const CaseSpec& spec, const ModelConfig& config) {
  if (config.traits().window != WindowRule::kNone) return "";
  ModelConfig qwen2 = config;
  qwen2.family = "qwen2";
  const bool fits_qwen2 = have_equal_slots(config, qwen2);
  if (!fits_qwen2 || config.attention_bias || config.mlp_bias) return "the family has no windows";
  return spec.parallel.custom_plan.is_null() ? "" : "the plan is of another family";
}

std::string is_llama_without_biases(const CaseSpec& spec, const ModelConfig& config) {
  if (config.family != "llama") return "the family is another";
  return may_have_windows(spec, config);
}

void make_qwen2(Variant& variant) {
  const ModelConfig config = variant.config;
  for (const char* key : {"architectures", "attention_bias", "mlp_bias"}) {
    variant.spec.model.erase(key);
  }
  variant.spec.model["model_type"] = "qwen2";
  set_model_key(variant, "num_key_value_heads", config.num_key_value_heads);
  WeightMap biases;
  for (const auto& [name, weight] : variant.weights) {
    for (const char* part : {".q_proj.weight", ".k_proj.weight", ".v_proj.weight"}) {
      if (!name.ends_with(part)) continue;
      const std::string bias = name.substr(0, name.size() - 6) + "bias";
      biases[bias] = at::zeros({weight.size(0)}, weight.options());
    }
  }
  variant.weights.merge(biases);
}

void become_qwen2(Variant&, Variant& second) { make_qwen2(second); }

void drop_biases(const Variant&, const Variant&, Values&, Values& b) {
  std::erase_if(b, [](const auto& named) { return named.first.ends_with("_proj.bias"); });
}

// Gives every layer of both a window of `window` tokens.
void slide(Variant& first, Variant& second, bool slides, int64_t window) {
  for (Variant* variant : {&first, &second}) {
    if (variant->config.traits().window == WindowRule::kNone) make_qwen2(*variant);
    const std::vector<bool> all(static_cast<size_t>(variant->config.num_hidden_layers), slides);
    set_windows(*variant, all, window);
  }
}

constexpr int64_t kWindow = 2;

// The distance of the last token that a layer's output depends on, through all layers.
int64_t reach(const Variant& variant) { return variant.config.num_hidden_layers * (kWindow - 1); }

std::string outreaches_windows(const CaseSpec& spec, const ModelConfig& config) {
  const std::string none = may_have_windows(spec, config);
  if (!none.empty() || !spec.data.file.empty()) return none;
  const bool long_enough = spec.data.seq_len > config.num_hidden_layers * (kWindow - 1) + 2;
  return long_enough ? "" : "the samples are short";
}

// Only labels from position `from` on count, in both.
void count_from(Variant& first, Variant& second, int64_t from) {
  for (Variant* variant : {&first, &second}) {
    at::Tensor mask = variant->batch.token_mask.clone();
    mask.narrow(1, 0, std::min(from, mask.size(1))).zero_();
    variant->batch.token_mask = mask;
  }
}

void keep_from(Values& values, int64_t from) {
  at::Tensor logprobs = values.at("logprobs").clone();
  logprobs.narrow(1, 0, std::min(from, logprobs.size(1))).zero_();
  values["logprobs"] = logprobs;
}

// --- window_passed: the label at t is scored behind token t - 1.
void change_first_token(Variant& first, Variant& second) {
  slide(first, second, true, kWindow);
  count_from(first, second, reach(first) + 2);
  const int64_t vocab_size = first.config.vocab_size;
  at::Tensor ids = second.batch.input_ids.clone();
  ids.select(1, 0).copy_((ids.select(1, 0) + vocab_size / 2).remainder(vocab_size));
  second.batch.input_ids = ids;
}

void keep_outside_window(const Variant& first, const Variant&, Values& a, Values& b) {
  for (Values* values : {&a, &b}) keep_from(*values, reach(first) + 2);
}

// --- positions_shifted: tokens before all others, which those that count do not see.
void shift_positions(Variant& first, Variant& second) {
  slide(first, second, true, kWindow);
  count_from(first, second, reach(first) + 1);
  const int64_t count = row_multiple(first.spec);
  Batch& batch = second.batch;
  for (const BatchTensor& each : kBatchTensors) {
    at::Tensor& tensor = batch.*each.tensor;
    if (!tensor.defined() || tensor.dim() != 2) continue;
    tensor = at::cat({at::zeros({tensor.size(0), count}, tensor.options()), tensor}, 1);
  }
  batch.input_lengths = batch.input_lengths + count;
}

void shift_back(const Variant& first, const Variant&, Values& a, Values& b) {
  b["logprobs"] = b.at("logprobs").narrow(1, row_multiple(first.spec), first.batch.seq_len());
  for (Values* values : {&a, &b}) keep_from(*values, reach(first) + 1);
}

// --- window_of_all
void widen_window(Variant& first, Variant& second) {
  slide(first, second, false, first.batch.seq_len());
  ModelConfig rope = first.config;
  rope.rope_local_theta = rope.rope_theta;
  rope.rope_local_scaling = rope.rope_scaling;
  if (rope.traits().local_rope) {
    for (Variant* variant : {&first, &second}) set_rope(*variant, rope);
  }
  const std::vector<bool> all(static_cast<size_t>(first.config.num_hidden_layers), true);
  set_windows(second, all, first.batch.seq_len());
}

// --- other_rope_base
std::string has_two_ropes(const CaseSpec&, const ModelConfig& config) {
  return config.traits().local_rope ? "" : "all layers have one rotary base";
}

void change_unused_rope(Variant& first, Variant& second) {
  slide(first, second, true, 1 + first.batch.seq_len() / 2);
  ModelConfig rope = first.config;
  rope.rope_theta *= 3;
  set_rope(second, rope);
}

}  // namespace

bool have_equal_slots(const ModelConfig& a, const ModelConfig& b) {
  if (a.num_hidden_layers != b.num_hidden_layers) return false;
  for (int64_t layer = 0; layer < a.num_hidden_layers; ++layer) {
    if (layer_slots(a, layer) != layer_slots(b, layer)) return false;
  }
  return true;
}

std::vector<Relation> config_relations() {
  return {
      {.name = "kv_heads_repeated",
       .changed = "a kv head for each query head, with the weights of the one that it shared",
       .why_not = shares_kv_heads,
       .change = give_each_its_kv_head,
       .back = sum_kv_heads,
       .same_norm = false},
      {.name = "embedding_untied",
       .changed = "an lm_head of its own, with the embedding's weights",
       .why_not = is_tied,
       .change = untie,
       .back = sum_tied,
       .same_norm = false},
      {.name = "head_dim_doubled",
       .changed = "twice the head_dim, with zeros between the rotary pairs",
       .why_not = has_no_head_norms,
       .change = double_head_dim,
       .change_weights = spread_heads,
       .same_norm = false},
      {.name = "residual_widened",
       .changed = "4 times the hidden_size, with zeros between the dims",
       .change = widen,
       .change_weights = widen_weights,
       .same_norm = false},
      {.name = "layer_added",
       .changed = "a first layer that adds 0",
       .why_not = may_move_layers,
       .change = add_layer,
       .back = drop_layer,
       .same_norm = false},
      {.name = "llama_as_qwen2",
       .changed = "a qwen2 with biases of 0",
       .why_not = is_llama_without_biases,
       .change = become_qwen2,
       .back = drop_biases,
       .same_norm = false},
      {.name = "window_passed",
       .changed = "another first token, which windows of 2 tokens do not reach",
       .why_not = outreaches_windows,
       .change = change_first_token,
       .back = keep_outside_window,
       .changes_first = true},
      {.name = "positions_shifted",
       .changed = "tokens before the first one, which windows of 2 tokens do not reach",
       .why_not = outreaches_windows,
       .change = shift_positions,
       .back = shift_back,
       .changes_first = true},
      {.name = "window_of_all",
       .changed = "a window as long as the samples instead of none",
       .why_not = may_have_windows,
       .change = widen_window,
       .changes_first = true},
      {.name = "other_rope_base",
       .changed = "another rotary base of layers without windows, of which there are none",
       .why_not = has_two_ropes,
       .change = change_unused_rope,
       .changes_first = true},
  };
}

}  // namespace shardproof::sim::relations
