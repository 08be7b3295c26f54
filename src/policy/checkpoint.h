// A trainer's state on disk, as full tensors, so that any mesh reads what any mesh wrote.
//
//   <root>/step_00000012/model.safetensors       the weights under their Hugging Face names, as the
//                                                optimizer has them (the wider type)
//                        optimizer.safetensors   "exp_avg.<weight>", "exp_avg_sq.<weight>",
//                                                "momentum_buffer.<weight>"; none before a step
//                        state.json              {"format": 1, "step": 12, "files": {name: bytes}}
//   <root>/.writing-step_00000012/               under way; never read, removed by the next save
//
// A folder gets its name when all that is in it is on the disk: whoever dies at any moment leaves
// the checkpoints before whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/mesh_comm.h"
#include "train/trainer.h"

namespace shardproof {

// Every rank calls it, rank 0 writes; it returns, on every rank, when the checkpoint is there. Its
// step may have one already, which is replaced in one moment. Returns its folder.
//
// Forward   all_gather over the world of each tensor; all_reduce of the outcome
// Throws    Error(kBadInput) on every rank: a folder that cannot be written
std::string save_checkpoint(const std::string& root, const Trainer& trainer, MeshComm& comm);

// The folder of the newest complete checkpoint; none: nothing there. Passes over folders whose
// state.json cannot be read or whose files have other sizes than it says.
std::optional<std::string> latest_checkpoint(const std::string& root);

// Every rank reads its own pieces: no communication. Throws Error(kBadInput): a file that is
// missing or has another size than state.json says, weights of another model, states of another
// optimizer, no such folder.
void load_checkpoint(const std::string& folder, Trainer& trainer, const MeshComm& comm);

}  // namespace shardproof
