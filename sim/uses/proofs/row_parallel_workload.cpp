// Workload row_parallel_linear: y = x W^T + b, columns of W cut over tp.
//
// Sharded: src/parallel/tp/row_parallel.h, with its options. Over dp the samples are cut evenly and
// the gradients of W and b are addends. `expert`: the workload sums y, as a dispatcher of tokens
// does, and then adds the bias.
#include <ATen/ATen.h>

#include "collective/mappings.h"
#include "parallel/tp/row_parallel.h"
#include "sim/uses/proofs/built_in.h"
#include "sim/uses/proofs/slot_parameter.h"

namespace shardproof::sim::proofs {
namespace {

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

Workload row_parallel_workload() {
  return {.name = "row_parallel_linear",
          .about = "y = x W^T + b, columns of W cut over tp, samples of x over dp",
          .options = {{"samples", 4},
                      {"tokens", 12},
                      {"in_features", 24},
                      {"out_features", 5},
                      {"bias", true},
                      {"input_is_parallel", true},
                      {"stride", 1},
                      {"frozen", false},
                      {"sequence_parallel", false},
                      {"expert", false}},
          .inputs = row_inputs,
          .plain = plain_linear,
          .sharded = sharded_row};
}

}  // namespace shardproof::sim::proofs
