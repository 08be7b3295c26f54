// The sizes and options of a decoder, read from a Hugging Face config.json. No LibTorch here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "model/family.h"
#include "model/moe/router_rule.h"

namespace shardproof {

enum class RopeKind { kDefault, kLinear, kLlama3, kYarn };
constexpr std::array<const char*, 4> names_of(RopeKind) {
  return {"default", "linear", "llama3", "yarn"};
}

struct RopeScaling {
  RopeKind kind = RopeKind::kDefault;
  double factor = 1.0;
  double low_freq_factor = 1.0;                     // llama3
  double high_freq_factor = 4.0;                    // llama3
  int64_t original_max_position_embeddings = 8192;  // llama3, yarn
  double beta_fast = 32.0, beta_slow = 1.0;         // yarn: turns within the original context
  bool truncate = true;                             // yarn: whether the ramp has whole bounds
  double score_factor = 1.0;                        // yarn: of scores of latent attention
  double attention_factor = 1.0;                    // yarn: of cosines and sines
};

enum class Activation { kSilu, kGeluTanh, kClampedSwiglu };

// Of kClampedSwiglu: (up + 1) gate sigmoid(alpha gate), with the gate at most `limit` and up
// between -limit and limit.
struct GateClamp {
  double alpha = 1.702, limit = 7.0;
};

// How experts compute, and how their weights lie.
struct ExpertForm {
  Activation activation = Activation::kSilu;
  GateClamp clamp = {};
  // gate_up is [N, E, 2F] with columns of gate and up in turn, down is [N, F, E], and both have
  // biases [N, 2F] and [N, E]. Otherwise gate_up is [N, 2F, E] with the rows of the gate first, and
  // down [N, E, F].
  bool columns_in_turn = false;
};

// Attention over a latent of keys and values: queries, with a latent too if q_rank > 0, and keys
// have nope + rope elements per head. The last ones turn by the position, and those of keys are
// shared by all heads.
struct LatentSizes {
  int64_t q_rank = 0, kv_rank = 0;
  int64_t nope = 0, rope = 0, value = 0;
  bool interleaved = true;  // neighbors turn together, not the two halves
};

struct ModelConfig {
  std::string family = "llama";  // family.h
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;       // of queries and keys
  LatentSizes latent = {};    // of families with latent attention
  int64_t pad_token_id = -1;  // >= 0: the embedding row gets no gradient
  double rms_norm_eps = 1e-6;
  Activation activation = Activation::kSilu;
  GateClamp gate_clamp = {};
  double query_pre_attn_scalar = 0;  // 0: head_dim
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double rope_local_theta = 10000.0;  // of sliding layers, in families where they have their own
  RopeScaling rope_local_scaling;
  int64_t sliding_window = 0;             // keys that a query sees, including its own
  std::vector<bool> sliding_layers = {};  // one per layer; empty: none
  bool tie_word_embeddings = false;
  bool attention_bias = false;        // q, k, v and o
  std::optional<bool> qkv_bias = {};  // q, k and v; unset: as the family has it
  bool mlp_bias = false;
  double extra_loss_weight = 0.1;        // of the mean of the losses of extra heads
  int64_t extra_heads = 0;               // each predicts one token further; decoder.h
  bool repeats_extra_layer = false;      // all extra heads have the weights of the first one
  RouterRule router = {};                // of layers with experts
  int64_t expert_width = 0;              // of the MLP of each expert
  int64_t shared_width = 0;              // of the MLP beside the experts; 0: none
  std::vector<bool> expert_layers = {};  // one per layer; empty: none has experts

  // The flags and numbers of a config.json that every family has; without the key a member keeps
  // its default. All other keys are read in config.cpp.
  template <class Read>
  void read_members(const Read& read) {
    read("mlp_bias", mlp_bias);
  }

  const FamilyTraits& traits() const { return family_traits(family); }
  // Whether a linear of a layer has a bias: "self_attn.q_proj", "mlp.up_proj", ..
  bool has_bias(const std::string& linear) const;
  // Those of extra heads have the numbers behind the others.
  int64_t layers_with_heads() const { return num_hidden_layers + extra_heads; }
  int64_t layers_with_weights() const;  // of their own: the first ones
  // 0: the layer sees all tokens before.
  int64_t window_of_layer(int64_t layer) const;
  bool has_sliding_layers() const;
  bool has_experts(int64_t layer) const;
  bool has_experts() const;                           // in any layer
  double eps_of_norm(const std::string& slot) const;  // its name, or that of an observation there
  std::string router_of(int64_t layer) const;  // "model.layers.0.mlp.gate", a part of slots' names
  bool has_shared_expert(int64_t layer) const;
  // The inner size of the MLP to which a slot belongs: a shared expert's, or that of dense layers.
  int64_t mlp_width(const std::string& slot) const;
  ExpertForm expert_form() const;
  int64_t rotary_dim() const { return latent.rope > 0 ? latent.rope : head_dim; }
  int64_t value_dim() const { return latent.value > 0 ? latent.value : head_dim; }
  double score_scale() const;      // of q k^T
  double embedding_scale() const;  // of the embedding's output

  // Reads a config.json in the spelling of transformers 4 (rope_theta, rope_scaling) or 5
  // (rope_parameters). For Gemma3ForConditionalGeneration it reads the text part. Throws a
  // ConfigError with all problems: a missing or ill-typed size, an unsupported architecture or
  // option (activation, rope type).
  static ModelConfig from_json(const nlohmann::json& config);
};

}  // namespace shardproof
