// Applies Ulysses to a decoder from outside: each attention core exchanges sequence for heads.
#pragma once

#include "comm/mesh_comm.h"
#include "model/decoder.h"

namespace shardproof {

// Wraps every attention core, of any kind, into the all-to-alls over the axis ulysses. The caller
// gives each rank its tokens with their positions: rank u holds part u of the core's sequence. With
// ulysses = 1 nothing changes.
//
// Call it after apply_tensor_parallel, whose heads per rank it splits, and after
// apply_context_parallel. `comm` must outlive the model and every backward through it. It makes the
// ulysses communicator, but does not communicate.
//
// Throws   Error(kRefused), with nothing changed: ulysses does not divide the query heads of a tp
//          rank
// Source   LightRFT parallel_utils.py; Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509
void apply_ulysses(Decoder& model, MeshComm& comm);

}  // namespace shardproof
