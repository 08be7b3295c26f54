// Tensor parallelism applied to a decoder from outside.
#pragma once

#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "parallel/tp/plan.h"

namespace shardproof {

// Replaces what the slots hold by the plan, and declares for every parameter its layout and how its
// gradient is finished, for every slot where its inputs and output lie. Comes before
// Decoder::materialise, which cuts the parameters. With tp = 1 the plan is checked and nothing
// changes.
//
// `comm` must outlive the model and every backward through it. No communication happens here, but
// the tp communicator is made.
//
// With sequence parallelism the caller pads sequences to a multiple of tp (asserted by the
// embedding).
//
// Throws   what resolve_plan and place_slot throw, before anything is changed
// Source   NeMo-RL parallelize.py, _parallelize_llama
void apply_tensor_parallel(Decoder& model, MeshComm& comm, const TensorParallelOptions& options);

}  // namespace shardproof
