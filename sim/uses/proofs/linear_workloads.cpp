// The workloads of linear layers: one slot of a model, called without the model.
//
// Workload column_parallel_linear: y = x W^T + b, rows of W cut over tp.
//
// Sharded: src/parallel/tp/column_parallel.h, with its options. Over dp the samples are cut evenly
// and the gradients of W and b are addends.
//
// Workload row_parallel_linear: y = x W^T + b, columns of W cut over tp.
//
// Sharded: src/parallel/tp/row_parallel.h, with its options. Over dp the samples are cut evenly and
// the gradients of W and b are addends.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <string_view>

#include "base/error.h"
#include "collective/mappings.h"
#include "model/slot.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/row_parallel.h"
#include "sim/uses/proofs/built_in.h"

namespace shardproof::sim::proofs {
namespace {

// This rank's leaf as a parameter; if it is not trainable, without the leaf's graph.
ParameterPtr slot_parameter(const std::string& name, const TensorsByName& local,
                            bool trainable = true) {
  const at::Tensor& leaf = local.at(name);
  return std::make_shared<Parameter>(
      Parameter{.name = name, .tensor = trainable ? leaf : leaf.detach(), .trainable = trainable});
}

// The layer's output, without probes.
at::Tensor run_layer(Layer& layer, const at::Tensor& input) {
  NoProbe nobody;
  return layer.forward({input}, StepContext{.probe = nobody});
}

// y = x W^T (+ bias) of the full "x", "weight" and, with option bias, "bias". With option frozen
// the weight has no gradient.
WorkloadTensors plain_linear(const TensorsByName& full, const Options& options) {
  const at::Tensor& weight = full.at("weight");
  at::Tensor y = full.at("x").matmul((options["frozen"] ? weight.detach() : weight).t());
  if (options["bias"]) y = y + full.at("bias");
  return {{"y", y}};
}

// `stride` equal blocks of `size`. Throws Error(kRefused), naming the size by `what`, when stride
// does not divide it.
std::vector<int64_t> equal_blocks(int64_t size, int64_t stride, std::string_view what) {
  if (stride < 1 || size % stride != 0) {
    throw_refused(
        fmt::format("{} {} does not split into stride={} equal blocks", what, size, stride),
        "choose a stride that divides it");
  }
  return std::vector<int64_t>(static_cast<size_t>(stride), size / stride);
}

// --- column_parallel_linear

// Empty: the output is not fused.
std::vector<int64_t> fused_blocks(const Options& options) {
  const int64_t out = options["out_features"];
  const std::string fused = options["fused"];
  if (fused == "none") return {};
  if (fused == "gate_up") return {out / 2, out - out / 2};
  return {out - 2 * (out / 4), out / 4, out / 4};
}

bool gathers_output(const Options& options) {
  const std::string at_run_time = options["runtime_gather"];
  return at_run_time == "default" ? options["gather_output"].get<bool>() : at_run_time == "yes";
}

Layout cut_rows(int64_t dim, const Options& options) {
  const std::vector<int64_t> blocks = fused_blocks(options);
  return Layout({blocks.empty() ? Cut::chunk(dim, "tp") : Cut::in_blocks(dim, "tp", blocks)});
}

WorkloadTensors column_inputs(Draw& draw, const Options& options) {
  const int64_t in = options["in_features"], out = options["out_features"];
  Layout tokens = over_dp();
  if (options["sequence_parallel"] || options["expert"]) tokens.append(Cut::even(1, "tp"));
  const Layout rows = cut_rows(0, options);
  WorkloadTensors inputs = {{"x", draw.normal({options["samples"], options["tokens"], in}), tokens},
                            {"weight", draw.normal({out, in}), rows, {"dp"}}};
  if (options["bias"]) inputs.push_back({"bias", draw.normal({out}), rows, {"dp"}});
  return inputs;
}

std::vector<int64_t> parts_of(const Layout& layout, int64_t size, const Mesh& mesh, int64_t rank) {
  std::vector<int64_t> parts;
  for (const int64_t peer : mesh.peers_along("tp", rank)) {
    parts.push_back(layout.local_shape({size}, mesh, peer)[0]);
  }
  return parts;
}

ColumnParallelLinear::Options layer_options(MeshComm& comm, const Options& options) {
  ColumnParallelLinear::Options layer = {
      .label = "column_parallel_linear",
      .sequence_parallel = options["sequence_parallel"],
      .gather_output = options["gather_output"],
      .output_parts =
          parts_of(cut_rows(0, options), options["out_features"], comm.mesh(), comm.rank()),
      .blocks = fused_blocks(options),
      .caller_communicates = options["disable_grad_reduce"] || options["expert"],
      .async_grad = options["async_grad"]};
  if (options["gather_buffer"]) layer.gather_buffer = std::make_shared<GatherBuffer>();
  return layer;
}

at::Tensor entering(const at::Tensor& x, Communicator& tp, const Options& options) {
  if (options["expert"]) return all_gather_with_reduce_scatter_backward(x, tp, 1, "dispatch");
  if (!options["disable_grad_reduce"]) return x;
  if (options["sequence_parallel"])
    return all_gather_with_reduce_scatter_backward(x, tp, 1, "caller");
  return copy_with_all_reduce_backward(x, tp, "caller");
}

WorkloadTensors sharded_column(const TensorsByName& local, MeshComm& comm, const Options& options,
                               WorkloadNotes& notes) {
  Communicator& tp = comm.along("tp");
  const auto layer = std::make_shared<ColumnParallelLinear>(
      slot_parameter("weight", local, !options["frozen"]),
      options["bias"] ? slot_parameter("bias", local) : nullptr, tp, layer_options(comm, options));
  notes.after_backward = [layer]() -> WorkloadTensors { return {}; };  // keeps its gather buffer
  const bool gathered = gathers_output(options);
  if (options["runtime_gather"] != "default") layer->set_gather_output(gathered);
  at::Tensor y = run_layer(*layer, entering(local.at("x"), tp, options));
  Layout layout = over_dp();
  if (!gathered) layout.append(cut_rows(2, options).cuts().front());
  return {{"y", y, layout}};
}

// --- row_parallel_linear

std::vector<int64_t> stride_blocks(const Options& options) {
  return equal_blocks(options["in_features"], options["stride"], "in_features");
}

WorkloadTensors row_inputs(Draw& draw, const Options& options) {
  const int64_t in = options["in_features"], out = options["out_features"];
  const auto blocks = stride_blocks(options);
  Layout features = over_dp();
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
  RowParallelLinear layer(slot_parameter("weight", local, !options["frozen"]),
                          options["bias"] ? slot_parameter("bias", local) : nullptr, tp,
                          {.label = "row_parallel_linear",
                           .sequence_parallel = options["sequence_parallel"],
                           .input_is_parallel = options["input_is_parallel"],
                           .blocks = stride_blocks(options),
                           .caller_communicates = options["expert"]});
  at::Tensor y = run_layer(layer, local.at("x"));
  if (options["expert"]) {  // the dispatcher of tokens combines the addends
    y = options["sequence_parallel"] ? reduce_scatter_with_all_gather_backward(y, tp, 1, "combine")
                                     : all_reduce_with_identity_backward(y, tp, "combine");
  }
  Layout layout = over_dp();
  if (options["sequence_parallel"]) layout.append(Cut::even(1, "tp"));
  return {{"y", y, layout}};
}

}  // namespace

Workload column_parallel_workload() {
  return {.name = "column_parallel_linear",
          .inputs = column_inputs,
          .plain = plain_linear,
          .sharded_with_notes = sharded_column};
}

Workload row_parallel_workload() {
  return {.name = "row_parallel_linear",
          .inputs = row_inputs,
          .plain = plain_linear,
          .sharded = sharded_row};
}

}  // namespace shardproof::sim::proofs
