#include "sim/proofs/plain_linear.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace shardproof::sim {

WorkloadTensors plain_linear(const TensorsByName& full, const Options& options) {
  const at::Tensor& weight = full.at("weight");
  at::Tensor y = full.at("x").matmul((options["frozen"] ? weight.detach() : weight).t());
  if (options["bias"]) y = y + full.at("bias");
  return {{"y", y}};
}

void refuse_to_skip_no_bias(const Options& options) {
  if (!options["skip_bias_add"] || options["bias"]) return;
  throw Error({.kind = ErrorKind::kRefused,
               .what = "option skip_bias_add is true, but the layer has no bias",
               .fix = "set bias: true, or leave skip_bias_add out"});
}

}  // namespace shardproof::sim
