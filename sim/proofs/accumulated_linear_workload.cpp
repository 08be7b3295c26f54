#include "sim/proofs/accumulated_linear_workload.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "base/error.h"
#include "model/precision.h"
#include "parallel/tp/async_linear.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/row_parallel.h"
#include "sim/proofs/passes.h"
#include "sim/proofs/slot_parameter.h"

namespace shardproof::sim {
namespace {

constexpr const char* kLabel = "accumulated_linear";
// The tied weight is also used in a product with this.
constexpr double kOtherUse = 2;

bool is_row(const Options& options) { return options["layer"] == "row"; }

void check_accumulated(const Options& options) {
  const auto refuse = [](bool wrong, std::string what, std::string fix) {
    if (wrong) {
      throw Error({.kind = ErrorKind::kBadInput, .what = std::move(what), .fix = std::move(fix)});
    }
  };
  const std::string layer = options["layer"], stand_in = options["stand_in"];
  refuse(layer != "column" && layer != "row", "option layer is '" + layer + "'",
         "known are column, row");
  refuse(stand_in != "none" && stand_in != "nan" && stand_in != "zeros",
         "option stand_in is '" + stand_in + "'", "known are none, nan, zeros");
  refuse(is_row(options) &&
             (options["deferred_limit"] != -1 || options["async_all_reduce"] || options["bias"]),
         "option layer is 'row', which has no deferred_limit, async_all_reduce or bias",
         "leave them out, or set layer: column");
  refuse(options["async_all_reduce"] && options["bias"],
         "options async_all_reduce and bias are set, but its product adds no bias",
         "leave one of them out");
  refuse(options["async_all_reduce"] && options["deferred_limit"] != -1,
         "options async_all_reduce and deferred_limit are set, but its product defers nothing",
         "leave one of them out");
}

// Dim 0 is microbatches, dim 1 tokens, dim 2 features.
Layout with_own_tokens(const Options& options) {
  return options["sequence_parallel"] ? Layout({Cut::even(1, "tp")}) : Layout();
}
Layout with_own_features() { return Layout({Cut::even(2, "tp")}); }
Layout input_layout(const Options& options) {
  return is_row(options) ? with_own_features() : with_own_tokens(options);
}
Layout gradient_layout(const Options& options) {
  return is_row(options) ? with_own_tokens(options) : with_own_features();
}
Layout accumulated_weight_layout(const Options& options) {
  return Layout({Cut::even(is_row(options) ? 1 : 0, "tp")});
}
Layout accumulated_bias_layout() { return Layout({Cut::even(0, "tp")}); }

WorkloadTensors accumulated_inputs(Draw& draw, const Options& options) {
  check_accumulated(options);
  require_positive(options, {"microbatches", "in_features", "out_features", "uses"});
  const int64_t count = options["microbatches"], tokens = options["tokens"];
  const int64_t in = options["in_features"], out = options["out_features"];
  WorkloadTensors inputs = {{"x", draw.normal({count, tokens, in}), input_layout(options)},
                            {"grad", draw.normal({count, tokens, out}), gradient_layout(options)},
                            {"weight", draw.normal({out, in}), accumulated_weight_layout(options)}};
  if (options["bias"]) inputs.push_back({"bias", draw.normal({out}), accumulated_bias_layout()});
  return inputs;
}

// Written out: the gradients of y = (1 + 2 + .. + uses) x W^T + uses b.
WorkloadTensors plain_accumulated(const TensorsByName& full, const Options& options) {
  const at::NoGradGuard no_grad;
  const int64_t uses = options["uses"], count = options["microbatches"];
  const double factor = static_cast<double>(uses * (uses + 1)) / 2;
  const at::Tensor x = full.at("x"), grad = full.at("grad"), weight = full.at("weight");
  at::Tensor main_grad = grad.flatten(0, 1).t().matmul(x.flatten(0, 1)) * factor;
  if (options["stand_in"] == "zeros") {
    main_grad = main_grad + weight * kOtherUse * static_cast<double>(count);
  }
  WorkloadTensors outputs = {{"main_grad", main_grad}, {"grad_x", grad.matmul(weight) * factor}};
  if (options["bias"]) outputs.push_back({"grad_bias", grad.flatten(0, 1).sum(0) * uses});
  return outputs;
}

using Product = std::function<at::Tensor(const at::Tensor&)>;

// The weight and its gradient buffer, shared by all microbatches.
ParameterPtr accumulating_weight(const TensorsByName& local, const Options& options) {
  const at::Tensor leaf = local.at("weight").detach().requires_grad_();
  const at::ScalarType narrow = leaf.scalar_type();
  const auto dtype = options["narrow"] ? narrow : wider_type(narrow);
  return std::make_shared<Parameter>(
      Parameter{.name = "weight",
                .tensor = leaf,
                .main_gradient = std::make_shared<MainGradient>(
                    MainGradient{.sum = at::zeros(leaf.sizes(), leaf.options().dtype(dtype)),
                                 .wants_dummy = options["stand_in"] != "none",
                                 .zero_dummy = options["stand_in"] == "zeros"})});
}

// The product without a layer, whose options can contradict each other.
at::Tensor asked_product(const at::Tensor& x, const Parameter& weight, Communicator& tp,
                         bool sequence_parallel) {
  return async_linear(x, weight.tensor, {}, tp,
                      {.label = kLabel,
                       .reduce_input_gradient = true,
                       .sequence_parallel = sequence_parallel,
                       .main_gradient = weight.main_gradient});
}

// Adds the gradient of a tied weight's other use to the buffer.
void finish_microbatch(const Parameter& weight, const Options& options) {
  if (options["stand_in"] != "none") finish_main_gradient(weight.tensor, *weight.main_gradient);
}

WorkloadTensors accumulated_over(const Parameter& weight, const Product& product,
                                 const TensorsByName& local, const Options& options) {
  const MainGradient& main = *weight.main_gradient;
  std::vector<at::Tensor> grad_x;
  for (int64_t i = 0; i < options["microbatches"].get<int64_t>(); ++i) {
    const at::Tensor x = local.at("x").detach()[i].unsqueeze(0).clone().requires_grad_();
    at::Tensor y = product(x);
    for (int64_t use = 2; use <= options["uses"].get<int64_t>(); ++use) {
      y = y + product(x * use);
    }
    torch::autograd::variable_list roots = {y};
    torch::autograd::variable_list grads = {local.at("grad").detach()[i].unsqueeze(0)};
    if (main.zero_dummy) {
      roots.push_back(weight.tensor * kOtherUse);
      grads.push_back(local.at("weight").detach());
    }
    torch::autograd::backward(roots, grads);
    finish_microbatch(weight, options);
    grad_x.push_back(x.grad());
  }
  return {{"main_grad", main.sum, accumulated_weight_layout(options)},
          {"grad_x", at::cat(grad_x), input_layout(options)}};
}

WorkloadTensors accumulated_column(const TensorsByName& local, Communicator& tp,
                                   const Options& options) {
  const int64_t limit = options["deferred_limit"];
  const auto deferred = limit < 0 ? nullptr : std::make_shared<DeferredWeightGradients>(limit);
  const ParameterPtr weight = accumulating_weight(local, options);
  const bool sequence_parallel = options["sequence_parallel"];
  const ParameterPtr bias = options["bias"] ? slot_parameter("bias", local, false) : nullptr;
  if (bias) bias->tensor.requires_grad_();
  ColumnParallelLinear layer(
      weight, bias, tp,
      {.label = kLabel, .sequence_parallel = sequence_parallel, .deferred = deferred});
  const bool alone = options["async_all_reduce"];
  WorkloadTensors out = accumulated_over(
      *weight,
      [&](const at::Tensor& x) {
        return alone ? asked_product(x, *weight, tp, sequence_parallel) : run_layer(layer, x);
      },
      local, options);
  if (deferred) deferred->finish(weight->tensor, weight->main_gradient.get(), tp, kLabel);
  if (bias) {
    out.push_back({"grad_bias", gradient_of_leaf(bias->tensor), accumulated_bias_layout()});
  }
  return out;
}

WorkloadTensors accumulated_row(const TensorsByName& local, Communicator& tp,
                                const Options& options) {
  const ParameterPtr weight = accumulating_weight(local, options);
  RowParallelLinear layer(weight, nullptr, tp,
                          {.label = kLabel, .sequence_parallel = options["sequence_parallel"]});
  return accumulated_over(
      *weight, [&](const at::Tensor& x) { return run_layer(layer, x); }, local, options);
}

WorkloadTensors sharded_accumulated(const TensorsByName& local, MeshComm& comm,
                                    const Options& options) {
  Communicator& tp = comm.along("tp");
  return is_row(options) ? accumulated_row(local, tp, options)
                         : accumulated_column(local, tp, options);
}

}  // namespace

Workload accumulated_linear_workload() {
  return {.name = "accumulated_linear",
          .about = "the main gradient of one weight over several microbatches",
          .options = {{"microbatches", 4},
                      {"tokens", 12},
                      {"in_features", 5},
                      {"out_features", 12},
                      {"layer", "column"},
                      {"uses", 1},
                      {"sequence_parallel", false},
                      {"deferred_limit", -1},
                      {"narrow", false},
                      {"stand_in", "none"},
                      {"async_all_reduce", false},
                      {"bias", false}},
          .inputs = accumulated_inputs,
          .plain = plain_accumulated,
          .sharded = sharded_accumulated};
}

}  // namespace shardproof::sim
