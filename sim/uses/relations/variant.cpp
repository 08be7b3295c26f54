#include "sim/uses/relations/variant.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
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

at::Tensor index_tensor(const std::vector<int64_t>& indices) {
  return at::tensor(indices, at::kLong);
}

// `factors` along dim `dim` of a tensor with `dims` dims.
at::Tensor along(const std::vector<double>& factors, int64_t dim, int64_t dims) {
  std::vector<int64_t> shape(static_cast<size_t>(dims), 1);
  shape[static_cast<size_t>(dim)] = std::ssize(factors);
  return at::tensor(factors, at::kDouble).view(shape);
}

// rows [H * D, ..] turned by the angles [H, D / 2], or by their negatives.
at::Tensor turn(const at::Tensor& rows, const at::Tensor& angles, double sign) {
  const int64_t heads = angles.size(0), half = angles.size(1);
  const at::Tensor pairs = rows.reshape({heads, 2, half, -1});
  const at::Tensor a = pairs.select(1, 0), b = pairs.select(1, 1);
  const at::Tensor cosine = angles.cos().unsqueeze(-1), sine = angles.sin().unsqueeze(-1) * sign;
  return at::stack({a * cosine - b * sine, b * cosine + a * sine}, 1).reshape(rows.sizes());
}

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

int64_t row_multiple(const CaseSpec& spec) {
  const ParallelSpec& parallel = spec.parallel;
  return 2 * parallel.ranks(Share::kPositions) * parallel.ranks(Share::kModel) *
         spec.batching.length_round;
}

std::string has_no_head_norms(const CaseSpec&, const ModelConfig& config) {
  return config.traits().qk_norm ? "the heads of q and k are normalized" : "";
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

TensorMap scaled(double factor) {
  const auto times = [factor](const at::Tensor& x) { return x * factor; };
  return {times, times};
}

TensorMap norm_scaled(double factor, bool unit_offset) {
  if (!unit_offset) return scaled(factor);
  return {[factor](const at::Tensor& x) { return (x + 1.0) * factor - 1.0; },
          [factor](const at::Tensor& g) { return g * factor; }};
}

TensorMap permuted(int64_t dim, const std::vector<int64_t>& order) {
  const at::Tensor index = index_tensor(order);
  return {[=](const at::Tensor& x) { return x.index_select(dim, index); },
          [=](const at::Tensor& g) { return g.index_select(dim, index.argsort()); }};
}

TensorMap scaled_along(int64_t dim, const std::vector<double>& factors) {
  const auto times = [=](const at::Tensor& x) { return x * along(factors, dim, x.dim()); };
  return {times, times};
}

TensorMap placed(int64_t dim, const std::vector<int64_t>& places, int64_t size, double factor) {
  const at::Tensor index = index_tensor(places);
  const auto change = [=](const at::Tensor& x) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape[static_cast<size_t>(dim)] = size;
    return at::zeros(shape, x.options()).index_copy(dim, index, x * factor);
  };
  return {change, [=](const at::Tensor& g) { return g.index_select(dim, index) * factor; }};
}

TensorMap repeated_heads(int64_t rows, int64_t times) {
  const auto change = [=](const at::Tensor& x) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape[0] *= times;
    return x.reshape({x.size(0) / rows, 1, rows, -1})
        .expand({-1, times, -1, -1})
        .reshape(shape)
        .contiguous();
  };
  const auto back = [=](const at::Tensor& g) {
    std::vector<int64_t> shape = g.sizes().vec();
    shape[0] /= times;
    return g.reshape({shape[0] / rows, times, rows, -1}).sum(1).reshape(shape);
  };
  return {change, back};
}

TensorMap turned_heads(int64_t head_dim, const std::function<double(int64_t, int64_t)>& angle) {
  const auto turned = [=](const at::Tensor& x, double sign) {
    const int64_t heads = x.size(0) / head_dim;
    at::Tensor angles = at::empty({heads, head_dim / 2}, at::kDouble);
    double* out = angles.data_ptr<double>();
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t i = 0; i < head_dim / 2; ++i) *out++ = angle(head, i);
    }
    return turn(x, angles, sign);
  };
  return {[=](const at::Tensor& x) { return turned(x, 1); },
          [=](const at::Tensor& g) { return turned(g, -1); }};
}

WeightMaps::WeightMaps(const Variant& variant) : config_(variant.config) {
  for (const auto& [name, weight] : variant.weights) names_.insert(name);
}

void WeightMaps::add(const std::string& name, const TensorMap& map) {
  SHARDPROOF_ASSERT(has(name), "a relation changes " + name + ", which the model has not");
  maps_[name].push_back(map);
}

void WeightMaps::add_rows(const std::string& part, const TensorMap& map) {
  for (int64_t layer = 0; layer < config_.layers_with_weights(); ++layer) {
    add(layer_part(layer, part) + ".weight", map);
    const std::string bias = layer_part(layer, part) + ".bias";
    if (has(bias)) add(bias, map);
  }
}

void WeightMaps::add_columns(const std::string& part, const TensorMap& map) {
  for (int64_t layer = 0; layer < config_.layers_with_weights(); ++layer) {
    add(layer_part(layer, part) + ".weight", map);
  }
}

void WeightMaps::add_norms(const TensorMap& map) {
  for (int64_t layer = 0; layer < config_.layers_with_weights(); ++layer) {
    for (const auto& [part, role] : layer_slots(config_, layer)) {
      if (role == SlotRole::kStreamNorm) add(layer_part(layer, part) + ".weight", map);
    }
  }
  add("model.norm.weight", map);
}

void WeightMaps::change(WeightMap& weights) const {
  for (const auto& [name, maps] : maps_) {
    for (const TensorMap& map : maps) weights[name] = map.change(weights.at(name)).contiguous();
  }
}

void WeightMaps::back(Values& values) const {
  for (const auto& [name, maps] : maps_) {
    const auto gradient = values.find(gradient_of(name));
    if (gradient == values.end()) continue;
    for (auto map = maps.rbegin(); map != maps.rend(); ++map) {
      gradient->second = map->back(gradient->second).contiguous();
    }
  }
}

std::string layer_part(int64_t layer, const std::string& part) {
  return fmt::format("model.layers.{}.{}", layer, part);
}

}  // namespace shardproof::sim::relations
