// The experts that the golden chose, for ranks in a lower precision, in which roundings decide
// between scores that are near each other.
#pragma once

#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "sim/case/record/golden_record.h"

namespace shardproof::sim::world {

// Wraps the selections of a model whose styles are applied: each token goes to the experts that it
// has in `golden`, and padding to none. The arguments outlive the model.
void take_golden_routes(Decoder& model, const GoldenRecord& golden, const MeshComm& comm);

}  // namespace shardproof::sim::world
