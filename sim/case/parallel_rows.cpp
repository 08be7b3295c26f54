// Options of the mesh and of the sharding over it.
#include "sim/case/names.h"
#include "sim/case/row.h"

namespace shardproof::sim {

const OptionRows<ParallelSpec>& rows_of(const ParallelSpec&) {
  using Spec = ParallelSpec;
  constexpr Range ranks{1, kMaxRanks};
  static const OptionRows<ParallelSpec> rows = {
      row<&Spec::dp>("parallel.data_parallel_size",
                     "Ranks of axis dp; default: world.size divided by the other axes, or 1", ranks,
                     Default::kFollows, ShortName{"dp"}),
      row<&Spec::cp>("parallel.context_parallel_size", "Ranks of axis cp", ranks, ShortName{"cp"}),
      row<&Spec::ulysses>("parallel.ulysses_size", "Ranks of axis ulysses", ranks,
                          ShortName{"ulysses"}),
      row<&Spec::tp>("parallel.tensor_parallel_size", "Ranks of axis tp", ranks, ShortName{"tp"}),
      row<&Spec::sequence_parallel>("parallel.sequence_parallel",
                                    "Shard the sequence over tp in norms", ShortName{"sp"},
                                    Flag{"--sequence-parallel"}),
      row<&Spec::async_grad>("parallel.tp.async_grad",
                             "Column-parallel linears reduce the gradient of their input while "
                             "they compute that of their weight"),
      row<&Spec::gather_buffer>("parallel.tp.gather_buffer",
                                "Linears with sequence_parallel gather into memory that they "
                                "use again"),
      row<&Spec::deferred_wgrad>("parallel.tp.deferred_wgrad",
                                 "Microbatches whose weight gradients of column-parallel linears "
                                 "are computed after the last backward; 0: none",
                                 Range{0, 1e6}),
      row<&Spec::bias>("parallel.tp.bias",
                       "after: a linear that tp cuts leaves its bias to be added after it",
                       ShortName{"bias"}),
      row<&Spec::gradients>("run.gradients",
                            "main: the backward of a linear adds the gradient of its weight to a "
                            "buffer of the wider type"),
      row<&Spec::data_parallel>("parallel.data_parallel", "How dp holds parameters",
                                Flag{"--data-parallel"}),
      member<&Spec::fsdp>(),
      row<&Spec::activation_checkpointing>(
          "parallel.activation_checkpointing",
          "Part of a layer that the backward recomputes; true: mlp", OfBool{"none", "mlp"},
          ShortName{"checkpointing"}, Flag{"--activation-checkpointing"}),
      row<&Spec::context_layout>(
          "parallel.context_layout", "Which tokens of a sequence a cp rank holds",
          Choices{{"zigzag", "contiguous"}}, ShortName{"layout"}, Flag{"--context-layout"}),
      row<&Spec::context_rotation>("parallel.context_rotation",
                                   "How cp ranks exchange keys and values", ShortName{"rotation"},
                                   Flag{"--context-rotation"}),
      row<&Spec::custom_plan>("parallel.custom_parallel_plan",
                              "{slot name pattern: style}, instead of the architecture's own plan",
                              Null::kAllowed, ShortName{"plan"}),
      row<&Spec::grad_norm_counts>("run.grad_norm.counts",
                                   "each_of_tp: a parameter that tp copies counts once per rank, "
                                   "so that the norm is too large",
                                   ShortName{"counts"}),
      row<&Spec::inference_tp>(
          "run.refit.tensor_parallel_size",
          "policy: inference ranks outside of the mesh, to which a refit sends the weights",
          Range{1, 1024}, Default::kFollows),
  };
  return rows;
}

const OptionRows<FsdpSpec>& rows_of(const FsdpSpec&) {
  using Spec = FsdpSpec;
  static const OptionRows<FsdpSpec> rows = {
      row<&Spec::reshard_after_forward>(
          "parallel.fsdp.reshard_after_forward",
          "Free the parameters of a layer after its forward and gather them again for its backward",
          ShortName{"reshard"}, Flag{"--fsdp-no-reshard"}),
      row<&Spec::replicate_size>(
          "parallel.replicate_size",
          "hybrid: copies of the model along dp; each copy is sharded over the other ranks",
          Range{1, kMaxRanks}, ShortName{"copies"}, Flag{"--replicate-size"}),
      row<&Spec::prefetch>("parallel.fsdp.prefetch",
                           "Gather the next layer while the current one computes"),
      row<&Spec::reduce_each_microbatch>(
          "parallel.fsdp.reduce_each_microbatch",
          "false: keep whole gradients and reduce them after the last microbatch",
          ShortName{"reduce_each"}),
      row<&Spec::cpu_offload>(
          "parallel.cpu_offload",
          "fsdp, hybrid: keep shards, their gradients and the optimizer on the CPU",
          ShortName{"offload"}),
  };
  return rows;
}

const OptionRows<ReferenceSpec>& rows_of(const ReferenceSpec&) {
  using Spec = ReferenceSpec;
  constexpr Range ranks{1, kMaxRanks};
  static const OptionRows<ReferenceSpec> rows = {
      row<&Spec::dp>("reference.mesh.dp",
                     "Compare with another layout of the model, not with one device: its ranks of "
                     "axis dp; default: 1",
                     ranks, Default::kFollows, ShortName{"reference_dp"}),
      row<&Spec::cp>("reference.mesh.cp", "Ranks of axis cp of the reference; default: 1", ranks,
                     Default::kFollows, ShortName{"reference_cp"}),
      row<&Spec::ulysses>("reference.mesh.ulysses",
                          "Ranks of axis ulysses of the reference; default: 1", ranks,
                          Default::kFollows, ShortName{"reference_ulysses"}),
      row<&Spec::tp>("reference.mesh.tp", "Ranks of axis tp of the reference; default: 1", ranks,
                     Default::kFollows, ShortName{"reference_tp"}),
      row<&Spec::sequence_parallel>("reference.sequence_parallel",
                                    "The reference shards the sequence over tp in norms",
                                    ShortName{"reference_sp"}),
      row<&Spec::data_parallel>(
          "reference.data_parallel", "How dp of the reference holds parameters",
          Choices{{"replicate", "fsdp"}}, ShortName{"reference_data_parallel"}),
      member<&Spec::folder>(),
  };
  return rows;
}

}  // namespace shardproof::sim
