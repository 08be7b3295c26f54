#include "sim/proofs/column_parallel_workload.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "collective/mappings.h"
#include "parallel/tp/column_linear.h"
#include "parallel/tp/column_parallel.h"
#include "sim/proofs/plain_linear.h"

namespace shardproof::sim {
namespace {

[[noreturn]] void bad_option(const char* name, const std::string& value, const char* known) {
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("option {} is '{}'", name, value),
               .fix = fmt::format("known are {}", known)});
}

std::vector<int64_t> fused_blocks(const Options& options) {
  const int64_t out = options["out_features"];
  const std::string fused = options["fused"];
  const int64_t stride = options["stride"];
  if (fused != "none" && stride != 1) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("option fused is '{}' with a stride of {}", fused, stride),
                 .fix = "say the blocks by one of them"});
  }
  if (fused == "none") return equal_blocks(out, stride, "out_features");
  if (fused == "gate_up") return {out / 2, out - out / 2};
  if (fused == "qkv") return {out - 2 * (out / 4), out / 4, out / 4};
  bad_option("fused", fused, "none, gate_up, qkv");
}

std::optional<bool> runtime_gather(const Options& options) {
  const std::string asked = options["runtime_gather"];
  if (asked == "default") return std::nullopt;
  if (asked == "yes") return true;
  if (asked == "no") return false;
  bad_option("runtime_gather", asked, "default, yes, no");
}

// The plan's layer has no such options.
void check_slot_options(const Options& options) {
  if (!options["in_slot"]) return;
  const Options as_slot = {{"skip_bias_add", false},
                           {"runtime_gather", "default"},
                           {"fused", "none"},
                           {"external_weight", false},
                           {"frozen", false},
                           {"disable_grad_reduce", false},
                           {"expert", false},
                           {"gather_buffer", false},
                           {"stride", 1}};
  for (const auto& [name, value] : as_slot.items()) {
    if (options[name] == value) continue;
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("option in_slot with {}: {}", name, options[name].dump()),
                 .fix = fmt::format("the plan's layer (in_slot) has no {}: leave one out", name)});
  }
}

Layout cut_rows(int64_t dim, const Options& options) {
  if (options["in_slot"]) return Layout({Cut::chunk(dim, "tp")});
  return Layout({Cut::in_blocks(dim, "tp", fused_blocks(options))});
}

WorkloadTensors column_inputs(Draw& draw, const Options& options) {
  check_slot_options(options);
  const int64_t in = options["in_features"], out = options["out_features"];
  Layout tokens({Cut::even(0, "dp")});
  if (options["sequence_parallel"] || options["expert"]) tokens.append(Cut::even(1, "tp"));
  const Layout rows = cut_rows(0, options);
  WorkloadTensors inputs = {{"x", draw.normal({options["samples"], options["tokens"], in}), tokens},
                            {"weight", draw.normal({out, in}), rows, {"dp"}}};
  if (options["bias"]) inputs.push_back({"bias", draw.normal({out}), rows, {"dp"}});
  return inputs;
}

ParameterPtr slot_parameter(const std::string& name, const at::Tensor& local) {
  return std::make_shared<Parameter>(Parameter{.name = name, .tensor = local});
}

std::vector<int64_t> parts_of(const Layout& layout, int64_t size, const Mesh& mesh, int64_t rank) {
  std::vector<int64_t> parts;
  for (const int64_t peer : mesh.peers_along("tp", rank)) {
    parts.push_back(layout.local_shape({size}, mesh, peer)[0]);
  }
  return parts;
}

at::Tensor slot_output(const TensorsByName& local, MeshComm& comm, const Options& options) {
  NoProbe nobody;
  ColumnParallelLinear layer(
      slot_parameter("weight", local.at("weight")),
      options["bias"] ? slot_parameter("bias", local.at("bias")) : nullptr, comm.along("tp"),
      {.label = "column_parallel_linear",
       .sequence_parallel = options["sequence_parallel"],
       .gather_output = options["gather_output"],
       .output_parts =
           parts_of(cut_rows(0, options), options["out_features"], comm.mesh(), comm.rank())});
  return layer.forward({local.at("x")}, StepContext{.probe = nobody});
}

ColumnLinear column_layer(const TensorsByName& local, Communicator& tp, const Options& options,
                          GatherBuffer* buffer) {
  ColumnLinear layer(
      {.label = "column_parallel_linear",
       .input_size = options["in_features"],
       .output_size = options["out_features"],
       .bias = options["bias"],
       .skip_bias_add = options["skip_bias_add"],
       .gather_output = options["gather_output"],
       .stride = options["stride"],
       .blocks = options["fused"] == "none" ? std::vector<int64_t>{} : fused_blocks(options),
       .external_weight = options["external_weight"],
       .frozen = options["frozen"],
       .sequence_parallel = options["sequence_parallel"],
       .sequence_dim = 1,
       .gather_buffer = buffer,
       .disable_grad_reduce = options["disable_grad_reduce"],
       .expert = options["expert"],
       .dtype = local.at("weight").scalar_type()},
      tp);
  const at::Tensor& weight = local.at("weight");
  if (layer.weight()) layer.weight()->tensor = options["frozen"] ? weight.detach() : weight;
  if (layer.bias()) layer.bias()->tensor = local.at("bias");
  return layer;
}

at::Tensor entering(const at::Tensor& x, Communicator& tp, const Options& options) {
  if (options["expert"]) return all_gather_with_reduce_scatter_backward(x, tp, 1, "dispatch");
  if (options["disable_grad_reduce"]) return copy_with_all_reduce_backward(x, tp, "caller");
  return x;
}

at::Tensor layer_output(const TensorsByName& local, MeshComm& comm, const Options& options,
                        bool gathered, GatherBuffer* buffer) {
  Communicator& tp = comm.along("tp");
  ColumnLinear layer = column_layer(local, tp, options, buffer);
  ColumnLinear::Call call{.gather_output = runtime_gather(options)};
  if (options["external_weight"]) call.weight = local.at("weight");
  if (options["external_whole"]) {
    const std::vector<int64_t> whole = {options["out_features"], options["in_features"]};
    call.weight = at::zeros(whole, local.at("weight").options());
  }
  const auto [y, bias] = layer.forward(entering(local.at("x"), tp, options), call);
  if (!bias.defined()) return y;
  if (!gathered) return y + bias;
  const at::Tensor by_rank = all_gather_with_slice_backward(bias, tp, 0, "caller bias");
  return y + in_full_order(by_rank, 0, fused_blocks(options), tp.size());
}

WorkloadTensors sharded_column(const TensorsByName& local, MeshComm& comm, const Options& options,
                               WorkloadNotes& notes) {
  std::shared_ptr<GatherBuffer> buffer;
  if (options["gather_buffer"]) buffer = std::make_shared<GatherBuffer>();
  // The backward gathers into it too.
  notes.after_backward = [buffer]() -> WorkloadTensors { return {}; };
  const bool gathered = runtime_gather(options).value_or(options["gather_output"].get<bool>());
  Layout layout({Cut::even(0, "dp")});
  if (!gathered) layout.append(cut_rows(2, options).cuts().front());
  const at::Tensor y = options["in_slot"]
                           ? slot_output(local, comm, options)
                           : layer_output(local, comm, options, gathered, buffer.get());
  return {{"y", y, layout}};
}

}  // namespace

Workload column_parallel_workload() {
  return {.name = "column_parallel_linear",
          .about = "y = x W^T + b, rows of W cut over tp, samples of x over dp",
          .options = {{"samples", 4},
                      {"tokens", 12},
                      {"in_features", 5},
                      {"out_features", 12},
                      {"bias", true},
                      {"skip_bias_add", false},
                      {"gather_output", false},
                      {"runtime_gather", "default"},
                      {"fused", "none"},
                      {"stride", 1},
                      {"external_weight", false},
                      {"external_whole", false},
                      {"frozen", false},
                      {"sequence_parallel", false},
                      {"disable_grad_reduce", false},
                      {"expert", false},
                      {"gather_buffer", false},
                      {"in_slot", false}},
          .inputs = column_inputs,
          .plain = plain_linear,
          .sharded_with_notes = sharded_column};
}

}  // namespace shardproof::sim
