#include "sim/workload/accumulated_linear_workload.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "parallel/tp/column_linear.h"

namespace shardproof::sim {
namespace {

constexpr const char* kLabel = "accumulated_linear";

// Microbatches are dim 0, tokens dim 1.
Layout token_layout(const Options& options) {
  return options["sequence_parallel"] ? Layout({Cut::even(1, "tp")}) : Layout();
}

WorkloadTensors accumulated_inputs(Draw& draw, const Options& options) {
  const int64_t count = options["microbatches"], tokens = options["tokens"];
  const int64_t in = options["in_features"], out = options["out_features"];
  return {{"x", draw.normal({count, tokens, in}), token_layout(options)},
          {"grad", draw.normal({count, tokens, out}), Layout({Cut::even(2, "tp")})},
          {"weight", draw.normal({out, in}), Layout({Cut::even(0, "tp")})}};
}

// y = (1 + 2 + .. + uses) x W^T; the definitions of its two gradients.
WorkloadTensors plain_accumulated(const TensorsByName& full, const Options& options) {
  const at::NoGradGuard no_grad;
  const int64_t uses = options["uses"];
  const double factor = static_cast<double>(uses * (uses + 1)) / 2;
  const at::Tensor x = full.at("x"), grad = full.at("grad");
  const at::Tensor main_grad = grad.flatten(0, 1).t().matmul(x.flatten(0, 1)) * factor;
  return {{"main_grad", main_grad}, {"grad_x", grad.matmul(full.at("weight")) * factor}};
}

WorkloadTensors sharded_accumulated(const TensorsByName& local, MeshComm& comm,
                                    const Options& options) {
  Communicator& tp = comm.along("tp");
  const int64_t limit = options["deferred_limit"], uses = options["uses"];
  const auto deferred = limit < 0 ? nullptr : std::make_shared<DeferredWeightGradients>(limit);
  ColumnLinear layer({.label = kLabel,
                      .input_size = options["in_features"],
                      .output_size = options["out_features"],
                      .bias = false,
                      .sequence_parallel = options["sequence_parallel"],
                      .dtype = local.at("weight").scalar_type(),
                      .main_gradient = true,
                      .deferred = deferred},
                     tp);
  LayerParameter& weight = *layer.weight();
  weight.tensor = local.at("weight").detach().requires_grad_();
  std::vector<at::Tensor> grad_x;
  for (int64_t i = 0; i < options["microbatches"].get<int64_t>(); ++i) {
    const at::Tensor x = local.at("x").detach()[i].clone().requires_grad_();
    at::Tensor y = layer.forward(x).output;
    for (int64_t use = 2; use <= uses; ++use) y = y + layer.forward(x * use).output;
    torch::autograd::backward({y}, {local.at("grad").detach()[i]});
    grad_x.push_back(x.grad());
  }
  if (deferred) deferred->finish(weight.tensor, weight.main_gradient.get(), tp, kLabel);
  return {{"main_grad", weight.main_gradient->sum, Layout({Cut::even(0, "tp")})},
          {"grad_x", at::stack(grad_x), token_layout(options)}};
}

}  // namespace

Workload accumulated_linear_workload() {
  return {.name = "accumulated_linear",
          .about = "the main gradient of one weight over several microbatches",
          .options = {{"microbatches", 4},
                      {"tokens", 12},
                      {"in_features", 5},
                      {"out_features", 12},
                      {"uses", 1},
                      {"sequence_parallel", false},
                      {"deferred_limit", -1}},
          .inputs = accumulated_inputs,
          .plain = plain_accumulated,
          .sharded = sharded_accumulated};
}

}  // namespace shardproof::sim
