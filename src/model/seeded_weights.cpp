// Draws weights from one seed, each tensor from its own stream, independent of the others.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/seed.h"
#include "model/config_experts.h"
#include "model/weights.h"

namespace shardproof {
namespace {

constexpr double kMaxElements = 1e10;  // 80 GB of float64

void check_size(const std::map<std::string, std::vector<int64_t>>& shapes) {
  double elements = 0;
  for (const auto& [name, shape] : shapes) {
    double product = 1;
    for (const int64_t size : shape) product *= static_cast<double>(size);
    elements += product;
  }
  if (elements > kMaxElements) {
    throw_bad_input(
        fmt::format("seeded weights of this size have {:.3g} elements", elements),
        fmt::format("stay below {:.3g}, or give the weights in a folder", kMaxElements));
  }
}

// Matrices preserve the size of their inputs. Biases lie around 0, and other vectors, which are the
// factors of norms, around 1.
at::Tensor draw(const std::string& name, const std::vector<int64_t>& shape, int64_t seed,
                const ModelConfig& config) {
  if (is_added_bias(config, name)) return at::zeros(shape, at::kDouble);
  const at::Generator generator = at::detail::createCPUGenerator(generator_seed(seed, name));
  const at::Tensor normal = at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble));
  if (name.ends_with(".bias")) return normal.mul_(0.2);
  if (shape.size() == 1) return normal.mul_(0.2).add_(config.traits().unit_offset_norm ? 0.0 : 1.0);
  return normal.div_(std::sqrt(static_cast<double>(shape.back())));
}

}  // namespace

std::shared_ptr<const WeightMap> seeded_weights(const ModelConfig& config, int64_t seed) {
  const auto shapes = weight_shapes(config);
  check_size(shapes);
  auto weights = std::make_shared<WeightMap>();
  for (const auto& [name, shape] : shapes) {
    (*weights)[name] = draw(name, shape, seed, config);
  }
  return weights;
}

at::Tensor seeded_weight(const ModelConfig& config, int64_t seed, const std::string& name) {
  const auto shapes = weight_shapes(config);
  check_size(shapes);
  const auto found = shapes.find(name);
  SHARDPROOF_ASSERT(found != shapes.end(), "the model has no weight " + name);
  return draw(name, found->second, seed, config);
}

}  // namespace shardproof
