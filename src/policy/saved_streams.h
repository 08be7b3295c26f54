// The random streams of all ranks in a checkpoint, and those with which a rank of another mesh
// continues.
//
//   rng.safetensors   "<stream>" [ranks, bytes] uint8, the generators' states; one row where all
//                     ranks have the same
//   state.json        "rng": {"mesh": {axis: size}, "streams": {name: {"seeds": [..], "drawn":
//                     [..]}}}, one entry per row
//
// On the mesh that saved it each rank continues its own streams. On another mesh it continues a
// stream that all ranks shared and, when tp has the same size, one that differed over tp only.
// Other streams restart from their seed and the step: their numbers were for parts that no rank
// holds any more.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "random/rng_tracker.h"
#include "tensor/safetensors.h"

namespace shardproof {

// Every rank must call it with streams of the same names. Fills `tensors` for the file on every
// rank.
//
// Forward   per stream an all_gather over the world of its state and of its two numbers
nlohmann::json gather_streams(const RngTracker& rng, MeshComm& comm, at::Device device,
                              NamedTensors& tensors);

// Sets the tracker and returns the names of streams that restart. No communication. Throws
// Error(kBadInput), with the tracker unchanged, for data that gather_streams never wrote.
std::vector<std::string> set_streams(const nlohmann::json& saved, const SafetensorsFile& file,
                                     int64_t step, const MeshComm& comm, RngTracker& rng);

}  // namespace shardproof
