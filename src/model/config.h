// The sizes and options of a decoder, read from a Hugging Face config.json. No LibTorch here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "model/family.h"
#include "model/moe/router_rule.h"

namespace shardproof {

enum class RopeKind { kDefault, kLinear, kLlama3 };
constexpr std::array<const char*, 3> names_of(RopeKind) { return {"default", "linear", "llama3"}; }

struct RopeScaling {
  RopeKind kind = RopeKind::kDefault;
  double factor = 1.0;
  double low_freq_factor = 1.0;                     // llama3
  double high_freq_factor = 4.0;                    // llama3
  int64_t original_max_position_embeddings = 8192;  // llama3
};

enum class Activation { kSilu, kGeluTanh };

struct ModelConfig {
  std::string family = "llama";  // family.h
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t pad_token_id = -1;  // >= 0: the embedding row gets no gradient
  double rms_norm_eps = 1e-6;
  Activation activation = Activation::kSilu;
  double query_pre_attn_scalar = 0;  // 0: head_dim
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double rope_local_theta = 10000.0;  // of sliding layers, in families where they have their own
  RopeScaling rope_local_scaling;
  int64_t sliding_window = 0;             // keys that a query sees, including its own
  std::vector<bool> sliding_layers = {};  // one per layer; empty: none
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // q, k, v and o
  bool mlp_bias = false;
  RouterRule router = {};                // of layers with experts
  int64_t expert_width = 0;              // of the MLP of each expert
  std::vector<bool> expert_layers = {};  // one per layer; empty: none has experts

  const FamilyTraits& traits() const { return family_traits(family); }
  // Whether a linear of a layer has a bias: "self_attn.q_proj", "mlp.up_proj", ..
  bool has_bias(const std::string& linear) const;
  // 0: the layer sees all tokens before.
  int64_t window_of_layer(int64_t layer) const;
  bool has_sliding_layers() const;
  bool has_experts(int64_t layer) const;
  bool has_experts() const;        // in any layer
  double score_scale() const;      // of q k^T
  double embedding_scale() const;  // of the embedding's output

  // Reads a config.json in the spelling of transformers 4 (rope_theta, rope_scaling) or 5
  // (rope_parameters). For Gemma3ForConditionalGeneration it reads the text part. Throws a
  // ConfigError with all problems: a missing or ill-typed size, an unsupported architecture or
  // option (activation, rope type).
  static ModelConfig from_json(const nlohmann::json& config);
};

}  // namespace shardproof
