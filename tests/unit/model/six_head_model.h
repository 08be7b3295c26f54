// A decoder small enough to check element by element: six heads, two kv heads, two layers.
#pragma once

#include "model/config.h"

namespace shardproof::tests {

inline ModelConfig six_head_model() {
  ModelConfig config;
  config.vocab_size = 23;
  config.hidden_size = 12;
  config.intermediate_size = 10;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.head_dim = 4;
  return config;
}

}  // namespace shardproof::tests
