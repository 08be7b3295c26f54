#include "sim/proofs/layers_in_flight_workload.h"

#include <ATen/ATen.h>

#include "collective/mappings.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/row_parallel.h"
#include "sim/proofs/slot_parameter.h"

namespace shardproof::sim {
namespace {

// Samples are dim 0, tokens dim 1.
Layout own_tokens() { return Layout({Cut::even(0, "dp"), Cut::even(1, "tp")}); }
Layout own_features() { return Layout({Cut::even(0, "dp"), Cut::even(2, "tp")}); }

WorkloadTensors in_flight_inputs(Draw& draw, const Options& options) {
  const int64_t in = options["in_features"], out = options["out_features"];
  const Layout rows({Cut::even(0, "tp")});
  return {{"x", draw.normal({options["samples"], options["tokens"], in}), own_tokens()},
          {"kept", draw.normal({out, in}), rows, {"dp"}},
          {"up", draw.normal({out, in}), rows, {"dp"}},
          {"down", draw.normal({in, out}), Layout({Cut::even(1, "tp")}), {"dp"}}};
}

WorkloadTensors plain_in_flight(const TensorsByName& full, const Options&) {
  const at::Tensor& x = full.at("x");
  const at::Tensor y_layer = x.tanh().matmul(full.at("up").t());
  return {{"y_kept", x.matmul(full.at("kept").t())},
          {"y_layer", y_layer},
          {"z", y_layer.tanh().matmul(full.at("down").t())}};
}

WorkloadTensors sharded_in_flight(const TensorsByName& local, MeshComm& comm, const Options&,
                                  WorkloadNotes& notes) {
  Communicator& tp = comm.along("tp");
  const auto buffer = std::make_shared<GatherBuffer>();
  const at::Tensor& x = local.at("x");
  ColumnParallelLinear up(
      slot_parameter("up", local), nullptr, tp,
      {.label = "up", .sequence_parallel = true, .async_grad = true, .gather_buffer = buffer});
  RowParallelLinear down(slot_parameter("down", local), nullptr, tp,
                         {.label = "down", .sequence_parallel = true, .gather_buffer = buffer});
  const at::Tensor gathered =
      all_gather_with_reduce_scatter_backward(x, tp, 1, "kept", {}, buffer.get());
  const at::Tensor y_kept = at::linear(gathered, local.at("kept"));
  const at::Tensor y_layer = run_layer(up, x.tanh());
  const at::Tensor z = run_layer(down, y_layer.tanh());
  // Also keeps the buffer until the pass back is through.
  notes.after_backward = [buffer, &notes]() -> WorkloadTensors {
    notes.figures["gather_buffer"] = {{"memories", buffer->count()}, {"bytes", buffer->bytes()}};
    return {};
  };
  return {{"y_kept", y_kept, own_features()},
          {"y_layer", y_layer, own_features()},
          {"z", z, own_tokens()}};
}

}  // namespace

Workload layers_in_flight_workload() {
  return {.name = "layers_in_flight",
          .about = "sequence-parallel layers that gather into one buffer, two of them in flight",
          .options = {{"tokens", 12}, {"samples", 2}, {"in_features", 5}, {"out_features", 12}},
          .inputs = in_flight_inputs,
          .plain = plain_in_flight,
          .sharded_with_notes = sharded_in_flight};
}

}  // namespace shardproof::sim
