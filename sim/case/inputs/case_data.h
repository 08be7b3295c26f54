// The batch and weights of a case, read from its files or drawn from its seed. The golden and the
// ranks start from the same ones.
#pragma once

#include <cstdint>
#include <memory>

#include "model/batch.h"
#include "model/config.h"
#include "model/config_experts.h"
#include "model/weights.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

// The model. Throws an Error as ModelConfig::from_json and add_selection_bias do.
inline ModelConfig load_case_config(const CaseSpec& spec) {
  ModelConfig config = ModelConfig::from_json(spec.model);
  if (spec.selection_bias.rate != 0) add_selection_bias(config);
  return config;
}

// The global batch. Throws Error(kBadInput) as load_batch does.
inline Batch load_case_batch(const CaseSpec& spec, int64_t vocab_size) {
  if (!spec.data.file.empty()) return load_batch(spec.data.file, vocab_size);
  return seeded_batch({.batch_size = spec.data.batch_size,
                       .seq_len = spec.data.seq_len,
                       .lengths = spec.data.lengths,
                       .mask_probability = spec.data.mask_probability,
                       .mask_weights = spec.data.mask_weights,
                       .masked_not_finite = spec.data.masked_not_finite,
                       .dropped_samples = spec.data.dropped_samples,
                       .huge_advantage_sample = spec.data.huge_advantage_sample,
                       .huge_advantage_factor = spec.data.huge_advantage_factor,
                       .vocab_size = vocab_size,
                       .seed = spec.seed});
}

// The full weights, read-only. Throws Error(kBadInput) as load_weights does.
inline std::shared_ptr<const WeightMap> load_case_weights(const CaseSpec& spec,
                                                          const ModelConfig& config) {
  return spec.weights_folder.empty() ? seeded_weights(config, spec.seed)
                                     : load_weights(spec.weights_folder, config);
}

}  // namespace shardproof::sim
