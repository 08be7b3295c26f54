#include "sim/uses/relations/variant.h"

#include <ATen/ATen.h>

#include <filesystem>

#include "base/text_file.h"
#include "sim/case/inputs/case_data.h"
#include "tensor/safetensors.h"

namespace shardproof::sim::relations {

namespace {

using nlohmann::json;

json& decoder_keys(json& model) {
  return model.contains("text_config") ? model["text_config"] : model;
}

// Numbers that the loss mask leaves out need not be finite; those of a file must be.
at::Tensor finite(const at::Tensor& values) {
  return at::where(at::isfinite(values), values, at::zeros_like(values));
}

json rope_object(double theta, const RopeScaling& scaling) {
  json object = {{"rope_theta", theta}, {"rope_type", name_of(scaling.kind)}};
  if (scaling.kind != RopeKind::kDefault) object["factor"] = scaling.factor;
  if (scaling.kind == RopeKind::kYarn) {
    object["beta_fast"] = scaling.beta_fast;
    object["beta_slow"] = scaling.beta_slow;
    object["truncate"] = scaling.truncate;
    object["attention_factor"] = scaling.attention_factor;
    object["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  }
  if (scaling.kind == RopeKind::kLlama3) {
    object["low_freq_factor"] = scaling.low_freq_factor;
    object["high_freq_factor"] = scaling.high_freq_factor;
    object["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  }
  return object;
}

void read_config_again(Variant& variant) { variant.config = load_case_config(variant.spec); }

}  // namespace

Variant load_variant(const CaseSpec& spec) {
  Variant variant{.spec = spec, .config = load_case_config(spec)};
  const auto weights = load_case_weights(spec, variant.config);
  for (const auto& [name, weight] : *weights) {
    variant.weights[name] = weight.to(at::kDouble).contiguous();
  }
  variant.batch = load_case_batch(spec, variant.config.vocab_size);
  for (at::Tensor Batch::*values :
       {&Batch::prev_logprobs, &Batch::reference_logprobs, &Batch::advantages}) {
    if ((variant.batch.*values).defined()) variant.batch.*values = finite(variant.batch.*values);
  }
  return variant;
}

CaseSpec plain_run(CaseSpec spec) {
  spec.steps = 1;
  spec.judged = false;
  spec.record_activations = false;
  spec.noise_std = 0;
  spec.init = WeightInit::kMaster;  // a folder has the weights
  spec.faults.clear();
  spec.expect = {};
  spec.expected_file.clear();
  spec.dump_file.clear();
  spec.save_folder.clear();
  return spec;
}

void set_model_key(Variant& variant, const std::string& key, const json& value) {
  json& keys = decoder_keys(variant.spec.model);
  if (value.is_null()) {
    keys.erase(key);
  } else {
    keys[key] = value;
  }
  read_config_again(variant);
}

void set_rope(Variant& variant, const ModelConfig& config) {
  json& keys = decoder_keys(variant.spec.model);
  for (const char* key : {"rope_theta", "rope_scaling", "rope_local_base_freq"}) keys.erase(key);
  const json whole = rope_object(config.rope_theta, config.rope_scaling);
  const json local = rope_object(config.rope_local_theta, config.rope_local_scaling);
  keys["rope_parameters"] = whole;
  if (config.traits().local_rope) {
    keys["rope_parameters"] = {{"full_attention", whole}, {"sliding_attention", local}};
  }
  read_config_again(variant);
}

void set_windows(Variant& variant, const std::vector<bool>& sliding, int64_t window) {
  json& keys = decoder_keys(variant.spec.model);
  for (const char* key : {"max_window_layers", "sliding_window_pattern"}) keys.erase(key);
  json types = json::array();
  for (const bool slides : sliding) {
    types.push_back(slides ? "sliding_attention" : "full_attention");
  }
  keys["layer_types"] = types;
  keys["sliding_window"] = window;
  if (variant.config.traits().window == WindowRule::kLastLayers) keys["use_sliding_window"] = true;
  read_config_again(variant);
}

CaseSpec write_variant(const Variant& variant, const std::string& folder) {
  const std::filesystem::path place(folder);
  std::filesystem::create_directories(place);
  NamedTensors weights(variant.weights.begin(), variant.weights.end());
  for (auto& [name, weight] : weights) weight = weight.contiguous();
  write_safetensors((place / "model.safetensors").string(), weights);
  NamedTensors batch;
  for (const BatchTensor& each : kBatchTensors) {
    const at::Tensor& tensor = variant.batch.*each.tensor;
    if (tensor.defined()) batch.emplace_back(each.name, tensor.contiguous());
  }
  write_safetensors((place / "batch.safetensors").string(), batch);
  write_text_file((place / "config.json").string(), variant.spec.model.dump(1) + "\n");
  const LossSpec& loss = variant.spec.loss;
  const json constants = {
      {"loss", {{"kind", name_of(loss.kind)}, {"eps", loss.clip_eps}, {"beta", loss.kl_beta}}}};
  write_text_file((place / "case.json").string(), constants.dump(1) + "\n");

  CaseSpec spec = variant.spec;
  spec.weights_folder = place.string();
  const bool uneven = spec.data.uneven;
  spec.data = {};
  spec.data.file = (place / "batch.safetensors").string();
  spec.data.batch_size = variant.batch.size();
  spec.data.seq_len = variant.batch.seq_len();
  spec.data.uneven = uneven;
  return spec;
}

}  // namespace shardproof::sim::relations
