// Applies tensor parallelism to a decoder from outside.
#pragma once

#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "parallel/tp/plan.h"

namespace shardproof {

// Replaces the layers in the decoder's slots by those of the plan. Declares the layout and the
// gradient reduction of each parameter, and the layouts of each slot's inputs and output. Call it
// before Decoder::materialise, which cuts the parameters. With tp = 1 only the plan is checked.
//
// `comm` must outlive the model and every backward through it. Makes the tp communicator, without
// communication. With sequence parallelism the caller pads sequences to a multiple of tp (the
// embedding asserts it).
//
// Throws   the errors of resolve_plan and place_slot, before any change
// Source   NeMo-RL parallelize.py, _parallelize_llama
void apply_tensor_parallel(Decoder& model, MeshComm& comm, const TensorParallelOptions& options);

}  // namespace shardproof
