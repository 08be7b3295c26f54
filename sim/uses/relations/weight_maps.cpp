#include "sim/uses/relations/weight_maps.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace shardproof::sim::relations {

namespace {

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
    const auto gradient = values.find("grad." + name);
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
