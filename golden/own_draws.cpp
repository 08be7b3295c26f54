#include "golden/own_draws.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace shardproof::golden {
namespace {

struct Matrix {
  std::string name;
  int64_t cut_dim;
  bool padded;  // to equal parts
};

// In the order of the forward, as [out, in].
std::vector<Matrix> matrices_of(const ModelConfig& config) {
  constexpr std::array<const char*, 7> linears = {
      "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
      "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
  std::vector<Matrix> all = {{"model.embed_tokens.weight", 0, true}};
  const auto add_head = [&] {
    if (!config.tie_word_embeddings) all.push_back({"lm_head.weight", 0, true});
  };
  const int64_t layers = config.layers_with_weights(), first_extra = config.num_hidden_layers;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (layer == first_extra + 1) add_head();  // the first extra head uses it
    if (layer >= first_extra) {
      all.push_back({fmt::format("model.layers.{}.eh_proj.weight", layer), 0, false});
    }
    for (const std::string linear : linears) {
      const bool sums = linear.ends_with("o_proj") || linear.ends_with("down_proj");
      all.push_back({fmt::format("model.layers.{}.{}.weight", layer, linear), sums ? 1 : 0, false});
    }
  }
  if (layers < first_extra + 2) add_head();
  return all;
}

}  // namespace

std::shared_ptr<const WeightMap> with_own_draws(const WeightMap& weights, const ModelConfig& config,
                                                int64_t tp, int64_t seed) {
  if (config.has_experts()) {
    throw_refused(fmt::format("model.init is own_stream, in which each of {} ranks of tp draws its "
                              "own part, but routers of family {} are whole on every rank",
                              tp, config.traits().name),
                  "set model.init: master");
  }
  std::vector<at::Generator> streams;
  for (int64_t rank = 0; rank < tp; ++rank) {
    streams.push_back(at::detail::createCPUGenerator(static_cast<uint64_t>(seed + 2718 + rank)));
  }
  auto own = std::make_shared<WeightMap>(weights);
  for (const Matrix& matrix : matrices_of(config)) {
    std::vector<int64_t> shape = weights.at(matrix.name).sizes().vec();
    const double std_deviation = std::pow(static_cast<double>(shape[1]), -0.5);
    int64_t& size = shape[static_cast<size_t>(matrix.cut_dim)];
    const int64_t all = size, most = (all + tp - 1) / tp;
    std::vector<at::Tensor> parts;
    for (int64_t rank = 0; rank < tp; ++rank) {
      size = matrix.padded ? most : std::clamp<int64_t>(all - rank * most, 0, most);
      parts.push_back(at::randn(shape, streams[static_cast<size_t>(rank)], at::dtype(at::kDouble)));
    }
    (*own)[matrix.name] =
        at::cat(parts, matrix.cut_dim).narrow(matrix.cut_dim, 0, all) * std_deviation;
  }
  return own;
}

}  // namespace shardproof::golden
