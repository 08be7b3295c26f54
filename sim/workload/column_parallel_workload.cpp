#include "sim/workload/column_parallel_workload.h"

#include <ATen/ATen.h>

#include "parallel/tp/column_parallel.h"

namespace shardproof::sim {
namespace {

WorkloadTensors inputs(Draw& draw, const Options& options) {
  const int64_t in = options["in_features"], out = options["out_features"];
  Layout tokens({Cut::even(0, "dp")});
  if (options["sequence_parallel"]) tokens.append(Cut::even(1, "tp"));
  const Layout rows({Cut::chunk(0, "tp")});
  WorkloadTensors inputs = {{"x", draw.normal({options["samples"], options["tokens"], in}), tokens},
                            {"weight", draw.normal({out, in}), rows, {"dp"}}};
  if (options["bias"]) inputs.push_back({"bias", draw.normal({out}), rows, {"dp"}});
  return inputs;
}

WorkloadTensors plain(const TensorsByName& full, const Options& options) {
  at::Tensor y = full.at("x").matmul(full.at("weight").t());
  if (options["bias"]) y = y + full.at("bias");
  return {{"y", y}};
}

ParameterPtr parameter(const std::string& name, const at::Tensor& local) {
  return std::make_shared<Parameter>(Parameter{.name = name, .tensor = local});
}

std::vector<int64_t> parts_of(const Layout& layout, int64_t size, const Mesh& mesh, int64_t rank) {
  std::vector<int64_t> parts;
  for (const int64_t peer : mesh.peers_along("tp", rank)) {
    parts.push_back(layout.local_shape({size}, mesh, peer)[0]);
  }
  return parts;
}

WorkloadTensors sharded(const TensorsByName& local, MeshComm& comm, const Options& options) {
  const bool gathered = options["gather_output"];
  const Layout rows({Cut::chunk(0, "tp")});
  NoProbe nobody;
  ColumnParallelLinear layer(
      parameter("weight", local.at("weight")),
      options["bias"] ? parameter("bias", local.at("bias")) : nullptr, comm.along("tp"),
      {.label = "column_parallel_linear",
       .sequence_parallel = options["sequence_parallel"],
       .gather_output = gathered,
       .output_parts = parts_of(rows, options["out_features"], comm.mesh(), comm.rank())});
  Layout layout({Cut::even(0, "dp")});
  if (!gathered) layout.append(Cut::chunk(2, "tp"));
  return {{"y", layer.forward({local.at("x")}, StepContext{.probe = nobody}), layout}};
}

}  // namespace

Workload column_parallel_workload() {
  return {.name = "column_parallel_linear",
          .about = "y = x W^T + b, rows of W cut over tp, samples of x over dp",
          .options = {{"samples", 4},
                      {"tokens", 12},
                      {"in_features", 5},
                      {"out_features", 10},
                      {"bias", true},
                      {"gather_output", false},
                      {"sequence_parallel", false}},
          .inputs = inputs,
          .plain = plain,
          .sharded = sharded};
}

}  // namespace shardproof::sim
