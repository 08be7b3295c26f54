// The words for a model without experts where some are needed.
#pragma once

#include <string>

#include "model/config.h"
#include "model/family.h"

namespace shardproof {

struct NoExperts {
  std::string who;  // "a model of family llama"
  std::string fix;  // "choose a family with experts"
};

inline NoExperts no_experts(const ModelConfig& config) {
  const std::string family = config.traits().name;
  if (!config.traits().has_experts()) {
    return {"a model of family " + family, "choose a family with experts"};
  }
  return {"this config of " + family,
          "give a layer experts (mlp_only_layers, decoder_sparse_step, first_k_dense_replace)"};
}

}  // namespace shardproof
