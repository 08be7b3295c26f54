// Ulysses applied to a decoder from outside: around each attention core, sequence for heads.
#pragma once

#include "comm/mesh_comm.h"
#include "model/decoder.h"

namespace shardproof {

// Wraps every attention core, whatever stands in its slot, into the all-to-alls over the axis
// ulysses. The caller gives each rank its tokens with their positions: rank u holds part u of what
// the core sees. With ulysses = 1 nothing changes.
//
// After apply_tensor_parallel, whose heads per rank are the ones that are dealt, and after
// apply_context_parallel. `comm` must outlive the model and every backward through it. No
// communication here, but the ulysses communicator is made.
//
// Throws   Error(kRefused): ulysses does not divide the query heads that a tp rank has; before
//          anything is changed
// Source   LightRFT parallel_utils.py; Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509
void apply_ulysses(Decoder& model, MeshComm& comm);

}  // namespace shardproof
