// layer_parameters as a workload: where a tensor-parallel layer's values come from, and who answers
// for them.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// The layer draws its weight itself. Judged are the weight and the master that it keeps, both
// against one draw on one device whatever tp is, the draws of streams, the product of the layer,
// and all gradients.
//
// Options: samples, tokens, cut_features (which tp cuts: outputs of a column, inputs of a row, the
// vocabulary of an embedding), whole_features, stride, sequence_parallel, and
//   layer             column, row, embedding
//   init              master: all ranks draw the whole weight and keep their part; own_stream: each
//                     draws its part in a fork of its tracker, for which one device has to be told
//                     the tp_ranks
//   stream            of own_stream: "": the layer's own; else its name, as a bug would
//   saved_tp          n: the layer is drawn over n tp ranks instead (dp takes the rest of the
//                     world), its state saved, and loaded into a layer on this mesh, whose memory
//                     held NaN; "written" counts what all main replicas hold of each parameter
//   saved_features    cut_features of the layer that saves; 0: the same. An embedding takes them
//   stacked           the state is that of layer 3 of 8
//   one_run           each rank's part is saved as one run, which blocks are not
//   axis              tp, cp, ulysses: whose ranks hold the parts. With another one than tp the
//                     layer has a group of its own, as experts do, and tp ranks hold copies
//   expert_parallel   an expert's layer, of experts that are spread: its gradients are not averaged
//                     over dp
//
// "counted": elements of weight and bias that count in norms (is_not_tp_duplicate), over all tp
// ranks. Gradients are finished as the parameters' marks say (`sequence_parallel`: summed over tp,
// `allreduce`: over dp), and must then be whole. Sharded: tp_layer.h.
Workload layer_parameters_workload();

}  // namespace shardproof::sim
