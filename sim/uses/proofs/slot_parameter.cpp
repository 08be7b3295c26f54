#include "sim/uses/proofs/slot_parameter.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"

namespace shardproof::sim::proofs {

ParameterPtr slot_parameter(const std::string& name, const TensorsByName& local, bool trainable) {
  const at::Tensor& leaf = local.at(name);
  return std::make_shared<Parameter>(
      Parameter{.name = name, .tensor = trainable ? leaf : leaf.detach(), .trainable = trainable});
}

at::Tensor run_layer(Layer& layer, const at::Tensor& input) {
  NoProbe nobody;
  return layer.forward({input}, StepContext{.probe = nobody});
}

WorkloadTensors plain_linear(const TensorsByName& full, const Options& options) {
  const at::Tensor& weight = full.at("weight");
  at::Tensor y = full.at("x").matmul((options["frozen"] ? weight.detach() : weight).t());
  if (options["bias"]) y = y + full.at("bias");
  return {{"y", y}};
}

std::vector<int64_t> equal_blocks(int64_t size, int64_t stride, std::string_view what) {
  if (stride < 1 || size % stride != 0) {
    throw_refused(
        fmt::format("{} {} does not split into stride={} equal blocks", what, size, stride),
        "choose a stride that divides it");
  }
  return std::vector<int64_t>(static_cast<size_t>(stride), size / stride);
}

}  // namespace shardproof::sim::proofs
