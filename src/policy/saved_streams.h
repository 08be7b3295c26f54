// The random streams of all ranks in a checkpoint, and what a rank of another mesh takes of them.
//
//   rng.safetensors   "<stream>" [ranks, bytes] uint8, the generators' states; one row where all
//                     ranks have the same
//   state.json        "rng": {"mesh": {axis: size}, "streams": {name: {"seeds": [..], "drawn":
//                     [..]}}}, one entry per row
//
// On the mesh that saved it each rank goes on with its own streams. On another one a stream goes on
// that all ranks had alike, and, when tp has the same size, one that differed over tp alone. Others
// begin anew from their seed and the step: what they would have drawn was for parts that no rank
// has any more.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "random/rng_tracker.h"
#include "tensor/safetensors.h"

namespace shardproof {

// Every rank calls it, with streams of the same names. Fills `tensors` for the file on every rank.
//
// Forward   per stream an all_gather over the world of its state and of its two numbers
nlohmann::json gather_streams(const RngTracker& rng, MeshComm& comm, at::Device device,
                              NamedTensors& tensors);

// Sets the tracker; gives the names of streams that begin anew. No communication. Throws
// Error(kBadInput), the tracker unchanged: what gather_streams never wrote.
std::vector<std::string> set_streams(const nlohmann::json& saved, const SafetensorsFile& file,
                                     int64_t step, const MeshComm& comm, RngTracker& rng);

}  // namespace shardproof
