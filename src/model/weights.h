// The full weights of a model by Hugging Face name, from a folder or drawn from one seed.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "model/config.h"

namespace shardproof {

// Maps a name to its full tensor on the CPU: a view of a mapped file, or drawn once. No code may
// write to it, so that all ranks of a process can share it. Tied models have no lm_head.weight.
using WeightMap = std::map<std::string, at::Tensor>;

std::map<std::string, std::vector<int64_t>> weight_shapes(const ModelConfig& config);

// Loads model.safetensors, or the sharded files of model.safetensors.index.json; for
// Gemma3ForConditionalGeneration the text part, under the names of Gemma3ForCausalLM. Throws
// Error(kBadInput) for a missing or unexpected tensor, a wrong shape, and a non-finite weight.
std::shared_ptr<const WeightMap> load_weights(const std::string& folder, const ModelConfig& config);

// The same names and shapes, every element 0, in no memory to speak of: for a rank that is given
// its shards later.
std::shared_ptr<const WeightMap> weights_to_come(const ModelConfig& config);

// float64, every element different, biases and norms away from 0 and 1. Each tensor is drawn from
// its own generator (seed and name), so that it does not depend on the others.
std::shared_ptr<const WeightMap> seeded_weights(const ModelConfig& config, int64_t seed);

// One of them alone, for a rank that cuts its shard and drops the rest before it draws the next.
at::Tensor seeded_weight(const ModelConfig& config, int64_t seed, const std::string& name);

}  // namespace shardproof
