#include "sim/proofs/row_parallel_workload.h"

#include <ATen/ATen.h>

#include "collective/mappings.h"
#include "parallel/tp/row_linear.h"
#include "sim/proofs/plain_linear.h"

namespace shardproof::sim {
namespace {

std::vector<int64_t> stride_blocks(const Options& options) {
  const int64_t stride = options["stride"];
  return equal_blocks(options["in_features"], stride, "in_features");
}

WorkloadTensors row_inputs(Draw& draw, const Options& options) {
  const int64_t in = options["in_features"], out = options["out_features"];
  const auto blocks = stride_blocks(options);
  Layout features({Cut::even(0, "dp")});
  if (options["input_is_parallel"]) features.append(Cut::in_blocks(2, "tp", blocks));
  WorkloadTensors inputs = {
      {"x", draw.normal({options["samples"], options["tokens"], in}), features},
      {"weight", draw.normal({out, in}), Layout({Cut::in_blocks(1, "tp", blocks)}), {"dp"}}};
  if (!options["bias"]) return inputs;
  std::vector<std::string> partial = {"dp"};
  if (options["sequence_parallel"]) partial.push_back("tp");
  inputs.push_back({"bias", draw.normal({out}), {}, partial});
  return inputs;
}

WorkloadTensors sharded_row(const TensorsByName& local, MeshComm& comm, const Options& options) {
  Communicator& tp = comm.along("tp");
  RowLinear layer({.label = "row_parallel_linear",
                   .input_size = options["in_features"],
                   .output_size = options["out_features"],
                   .bias = options["bias"],
                   .skip_bias_add = options["skip_bias_add"],
                   .input_is_parallel = options["input_is_parallel"],
                   .stride = options["stride"],
                   .frozen = options["frozen"],
                   .sequence_parallel = options["sequence_parallel"],
                   .sequence_dim = 1,
                   .expert = options["expert"],
                   .dtype = local.at("weight").scalar_type()},
                  tp);
  const at::Tensor& weight = local.at("weight");
  layer.weight().tensor = options["frozen"] ? weight.detach() : weight;
  if (layer.bias()) layer.bias()->tensor = local.at("bias");
  const auto [output, bias] = layer.forward(local.at("x"));
  const at::Tensor sum =
      options["expert"] ? all_reduce_with_identity_backward(output, tp, "combine") : output;
  Layout layout({Cut::even(0, "dp")});
  if (options["sequence_parallel"]) layout.append(Cut::even(1, "tp"));
  return {{"y", bias.defined() ? sum + bias : sum, layout}};
}

}  // namespace

Workload row_parallel_workload() {
  return {.name = "row_parallel_linear",
          .about = "y = x W^T + b, columns of W cut over tp, samples of x over dp",
          .options = {{"samples", 4},
                      {"tokens", 12},
                      {"in_features", 24},
                      {"out_features", 5},
                      {"bias", true},
                      {"skip_bias_add", false},
                      {"input_is_parallel", true},
                      {"stride", 1},
                      {"frozen", false},
                      {"sequence_parallel", false},
                      {"expert", false}},
          .inputs = row_inputs,
          .plain = plain_linear,
          .sharded = sharded_row};
}

}  // namespace shardproof::sim
