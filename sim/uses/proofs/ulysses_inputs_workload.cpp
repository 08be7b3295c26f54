// Workload: the inputs and outputs of a model that is run by Ulysses ranks.
//
// Sharded: src/parallel/ulysses/slice_inputs.h around a model that looks up each id and scales it
// by its position. Outputs are `position_ids` of the tokens and `gathered`, the model's output.
#include <ATen/ATen.h>

#include "parallel/ulysses/slice_inputs.h"
#include "sim/uses/proofs/built_in.h"

namespace shardproof::sim::proofs {
namespace {

WorkloadTensors ulysses_inputs(Draw& draw, const Options& options) {
  const std::vector<int64_t> shape = {options["samples"], options["tokens"]};
  const int64_t vocab = options["vocab_size"];
  return {{"input_ids", draw.integers(vocab, shape)},
          {"position_ids", draw.integers(100, shape)},
          {"table", draw.normal({vocab, options["hidden_size"]}), Layout(), {"ulysses"}}};
}

at::Tensor looked_up(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& positions) {
  return at::embedding(table, ids) * (positions + 1).unsqueeze(-1).to(table.scalar_type());
}

WorkloadTensors plain_model(const TensorsByName& full, const Options&) {
  const at::Tensor positions = full.at("position_ids");
  return {{"position_ids", positions},
          {"gathered", looked_up(full.at("table"), full.at("input_ids"), positions)}};
}

WorkloadTensors model_over_ulysses(const TensorsByName& local, MeshComm& comm,
                                   const Options& options) {
  Communicator& ulysses = comm.along("ulysses");
  const SlicedInputs sliced =
      slice_and_pad_inputs(local.at("input_ids"), local.at("position_ids"), ulysses);
  const int64_t share = sliced.input_ids.size(1);
  const at::Tensor& positions = *sliced.position_ids;
  const at::Tensor own = looked_up(local.at("table"), sliced.input_ids,
                                   positions.narrow(1, ulysses.rank() * share, share));
  return {{"position_ids", positions.narrow(1, 0, options["tokens"])},
          {"gathered", gather_and_unpad(own, ulysses, 1, 1, sliced.padding, "gathered")}};
}

}  // namespace

Workload ulysses_inputs_workload() {
  return {.name = "ulysses_inputs",
          .inputs = ulysses_inputs,
          .plain = plain_model,
          .sharded = model_over_ulysses};
}

}  // namespace shardproof::sim::proofs
