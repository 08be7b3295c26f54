#include "sim/proofs/plain_linear.h"

#include <ATen/ATen.h>

namespace shardproof::sim {

WorkloadTensors plain_linear(const TensorsByName& full, const Options& options) {
  const at::Tensor& weight = full.at("weight");
  at::Tensor y = full.at("x").matmul((options["frozen"] ? weight.detach() : weight).t());
  if (options["bias"]) y = y + full.at("bias");
  return {{"y", y}};
}

}  // namespace shardproof::sim
