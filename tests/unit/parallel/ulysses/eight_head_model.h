// A decoder small enough for many meshes, whose eight heads and two kv heads each of them can
// share.
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
