// A small decoder with eight heads and two kv heads, which many meshes can cut.
#pragma once

#include "model/config.h"

namespace shardproof::tests {

inline ModelConfig eight_head_model() {
  ModelConfig config;
  config.vocab_size = 37;
  config.hidden_size = 24;
  config.intermediate_size = 30;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.rope_theta = 50;
  config.attention_bias = true;
  return config;
}

}  // namespace shardproof::tests
