// Saves and loads that fail on one rank. They throw unless all ranks say so and nothing is left.
#pragma once

#include <cstdint>
#include <string>

#include "comm/mesh_comm.h"
#include "policy/worker.h"

namespace shardproof::sim::world {

// Every rank calls it. Rank 0 fails behind the files of the model and the optimizer, for want of a
// tokenizer.
void fail_to_save(PolicyWorker& worker, MeshComm& comm, const std::string& root);
// Every rank calls it with the same arguments. `at_fault` reads a copy of the checkpoint in which
// the last byte of a file is missing.
void fail_to_load(PolicyWorker& worker, MeshComm& comm, const std::string& saved, int64_t at_fault);

}  // namespace shardproof::sim::world
