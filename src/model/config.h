// The sizes and options of a decoder, read from a Hugging Face config.json. No LibTorch here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace shardproof {

struct RopeScaling {
  std::string kind = "default";  // default | linear | llama3
  double factor = 1.0;
  double low_freq_factor = 1.0;                     // llama3
  double high_freq_factor = 4.0;                    // llama3
  int64_t original_max_position_embeddings = 8192;  // llama3
};

struct ModelConfig {
  std::string family = "llama";
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t pad_token_id = -1;  // >= 0: the embedding row gets no gradient
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // q, k, v and o
  bool mlp_bias = false;

  // From config.json, in the spelling of transformers 4 (rope_theta, rope_scaling) or 5
  // (rope_parameters). Throws Error(kBadInput): a missing or ill-typed size; kRefused: an
  // architecture or option (activation, rope type) that is not supported.
  static ModelConfig from_json(const nlohmann::json& config);
};

}  // namespace shardproof
