// Relations of models of one config whose weights follow from one another.
#include <ATen/ATen.h>

#include <numeric>

#include "sim/uses/relations/relations.h"

namespace shardproof::sim::relations {

namespace {

std::vector<int64_t> reversed(int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

// The rows of `heads` heads in reverse order of the heads.
std::vector<int64_t> reversed_heads(int64_t heads, int64_t head_dim) {
  std::vector<int64_t> order;
  for (int64_t head = heads - 1; head >= 0; --head) {
    for (int64_t row = 0; row < head_dim; ++row) order.push_back(head * head_dim + row);
  }
  return order;
}

// 1, 2, 4, 1, 2, 4, ..: products with them are exact.
double power_of(int64_t index) { return static_cast<double>(int64_t{1} << (index % 3)); }

// --- heads_reversed
std::string has_heads(const CaseSpec&, const ModelConfig& config) {
  return config.num_attention_heads > 1 ? "" : "the model has one head";
}

void reverse_heads(const Variant& second, WeightMaps& maps) {
  const ModelConfig& config = second.config;
  const auto queries = reversed_heads(config.num_attention_heads, config.head_dim);
  const auto keys = reversed_heads(config.num_key_value_heads, config.head_dim);
  maps.add_rows("self_attn.q_proj", permuted(0, queries));
  maps.add_rows("self_attn.k_proj", permuted(0, keys));
  maps.add_rows("self_attn.v_proj", permuted(0, keys));
  maps.add_columns("self_attn.o_proj", permuted(1, queries));
}

// --- values_scaled
void scale_values(const Variant& second, WeightMaps& maps) {
  const ModelConfig& config = second.config;
  const int64_t group = config.num_attention_heads / config.num_key_value_heads;
  std::vector<double> of_values, of_outputs;
  for (int64_t head = 0; head < config.num_attention_heads; ++head) {
    const double factor = power_of(head / group);
    for (int64_t row = 0; row < config.head_dim; ++row) {
      if (head % group == 0) of_values.push_back(factor);
      of_outputs.push_back(1 / factor);
    }
  }
  maps.add_rows("self_attn.v_proj", scaled_along(0, of_values));
  maps.add_columns("self_attn.o_proj", scaled_along(1, of_outputs));
}

// --- pairs_turned
void turn_pairs(const Variant& second, WeightMaps& maps) {
  const ModelConfig& config = second.config;
  const int64_t group = config.num_attention_heads / config.num_key_value_heads;
  const auto angle = [](int64_t kv_head, int64_t pair) {
    return 0.3 + 0.7 * static_cast<double>(kv_head) + 0.41 * static_cast<double>(pair);
  };
  maps.add_rows("self_attn.q_proj", turned_heads(config.head_dim, [=](int64_t head, int64_t pair) {
                  return angle(head / group, pair);
                }));
  maps.add_rows("self_attn.k_proj", turned_heads(config.head_dim, angle));
}

// --- channels_changed
void change_channels(const Variant& second, WeightMaps& maps) {
  const int64_t channels = second.config.intermediate_size;
  std::vector<double> factors, inverse;
  for (int64_t i = 0; i < channels; ++i) {
    factors.push_back(power_of(i));
    inverse.push_back(1 / power_of(i));
  }
  for (const char* part : {"mlp.gate_proj", "mlp.up_proj"}) {
    maps.add_rows(part, permuted(0, reversed(channels)));
  }
  maps.add_rows("mlp.up_proj", scaled_along(0, factors));
  maps.add_columns("mlp.down_proj", permuted(1, reversed(channels)));
  maps.add_columns("mlp.down_proj", scaled_along(1, inverse));
}

// --- residual_reversed
constexpr const char* kReaders[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                    "mlp.gate_proj", "mlp.up_proj"};
constexpr const char* kWriters[] = {"self_attn.o_proj", "mlp.down_proj"};

void reverse_residual(const Variant& second, WeightMaps& maps) {
  const std::vector<int64_t> order = reversed(second.config.hidden_size);
  maps.add("model.embed_tokens.weight", permuted(1, order));
  if (!second.config.tie_word_embeddings) maps.add("lm_head.weight", permuted(1, order));
  for (const char* part : kReaders) maps.add_columns(part, permuted(1, order));
  for (const char* part : kWriters) maps.add_rows(part, permuted(0, order));
  maps.add_norms(permuted(0, order));
}

// --- residual_scaled
constexpr double kResidual = 16;

void scale_eps(Variant& first, Variant& second) {
  set_model_key(second, "rms_norm_eps", first.config.rms_norm_eps * kResidual * kResidual);
}

void scale_residual(const Variant& second, WeightMaps& maps) {
  const FamilyTraits& family = second.config.traits();
  const bool offset = family.unit_offset_norm;
  maps.add("model.embed_tokens.weight", scaled(kResidual));
  for (const char* part : kWriters) maps.add_rows(part, scaled(kResidual));
  if (family.output_norms) {
    for (const char* part : {"post_attention_layernorm", "post_feedforward_layernorm"}) {
      maps.add_rows(part, norm_scaled(kResidual, offset));
    }
  }
  if (family.qk_norm) {  // their eps has grown too
    for (const char* part : {"self_attn.q_proj", "self_attn.k_proj"}) {
      maps.add_rows(part, scaled(kResidual));
    }
  }
  if (second.config.tie_word_embeddings) {
    maps.add("model.norm.weight", norm_scaled(1 / kResidual, offset));
  }
}

// --- temperature_doubled
void double_temperature(Variant&, Variant& second) { second.spec.loss.temperature *= 2; }

void double_logits(const Variant& second, WeightMaps& maps) {
  maps.add("model.norm.weight", norm_scaled(2, second.config.traits().unit_offset_norm));
}

// --- queries_scaled
std::string has_score_scale(const CaseSpec&, const ModelConfig& config) {
  return config.traits().own_score_scale ? "" : "the family has no query_pre_attn_scalar";
}

void quadruple_score_scale(Variant& first, Variant& second) {
  set_model_key(second, "query_pre_attn_scalar", first.config.query_pre_attn_scalar * 4);
}

void double_queries(const Variant& second, WeightMaps& maps) {
  maps.add_rows("self_attn.q_norm", norm_scaled(2, second.config.traits().unit_offset_norm));
}

}  // namespace

std::vector<Relation> weight_relations() {
  return {
      {.name = "heads_reversed",
       .changed = "the heads of q, k, v and o in reverse order",
       .why_not = has_heads,
       .change_weights = reverse_heads,
       .beside_heads = true},
      {.name = "values_scaled",
       .changed = "the values of each kv head times a factor that o divides by",
       .change_weights = scale_values,
       .same_norm = false,
       .beside_heads = true},
      {.name = "pairs_turned",
       .changed = "the rotary pairs of q and k turned by the same angle",
       .why_not = has_no_head_norms,
       .change_weights = turn_pairs,
       .same_norm = false,
       .beside_heads = true},
      {.name = "channels_changed",
       .changed = "the channels of the MLP in reverse order, times factors that down divides by",
       .change_weights = change_channels,
       .same_norm = false,
       .beside_heads = true},
      {.name = "residual_reversed",
       .changed = "the dims of the residual stream in reverse order",
       .change_weights = reverse_residual},
      {.name = "residual_scaled",
       .changed = "16 times the residual stream, under norms with 256 times the eps",
       .change = scale_eps,
       .change_weights = scale_residual,
       .same_norm = false},
      {.name = "temperature_doubled",
       .changed = "twice the temperature, and twice the last norm's factor",
       .change = double_temperature,
       .change_weights = double_logits,
       .same_norm = false},
      {.name = "queries_scaled",
       .changed = "4 times query_pre_attn_scalar, and twice the factor of the queries' norm",
       .why_not = has_score_scale,
       .change = quadruple_score_scale,
       .change_weights = double_queries,
       .same_norm = false},
  };
}

}  // namespace shardproof::sim::relations
