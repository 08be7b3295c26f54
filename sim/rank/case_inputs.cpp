#include "sim/rank/case_inputs.h"

namespace shardproof::sim {

std::shared_ptr<const CaseInputs> load_case_inputs(const CaseSpec& spec) {
  auto inputs = std::make_shared<CaseInputs>();
  inputs->config = ModelConfig::from_json(spec.model);
  inputs->weights = spec.weights_folder.empty() ? seeded_weights(inputs->config, spec.seed)
                                                : load_weights(spec.weights_folder, inputs->config);
  if (!spec.data.file.empty()) {
    inputs->batch = load_batch(spec.data.file, inputs->config.vocab_size);
  } else {
    inputs->batch = seeded_batch({.batch_size = spec.data.batch_size,
                                  .seq_len = spec.data.seq_len,
                                  .lengths = spec.data.lengths,
                                  .mask_probability = spec.data.mask_probability,
                                  .dropped_samples = spec.data.dropped_samples,
                                  .vocab_size = inputs->config.vocab_size,
                                  .seed = spec.seed});
  }
  return inputs;
}

std::shared_ptr<const CaseInputs> CaseInputsCache::get(const CaseSpec& spec) {
  const std::lock_guard lock(mutex_);
  const std::string key = golden_key(spec);
  if (!inputs_ || key != key_) {
    inputs_ = load_case_inputs(spec);
    key_ = key;
  }
  return inputs_;
}

}  // namespace shardproof::sim
