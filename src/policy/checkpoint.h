// A trainer's state on disk, as full tensors, so that any mesh reads what any mesh wrote.
//
//   <root>/step_00000012/model.safetensors       the weights under their Hugging Face names, as the
//                                                optimizer has them (the wider type)
//                        optimizer.safetensors   "exp_avg.<weight>", "exp_avg_sq.<weight>",
//                                                "momentum_buffer.<weight>"; none before a step
//                        rng.safetensors         saved_streams.h; where a tracker was given
//                        tokenizer.json ..       copies; where a folder was given
//                        state.json              {"format": 1, "step": 12, "schedule_steps": 9,
//                                                 "optimizer_steps": 11,
//                                                 "fewer_optimizer_steps": {weight: 7},
//                                                 "loss_scale": {..},
//                                                 "data_position": 480, "rng": {..},
//                                                 "files": {name: bytes}}
//   <root>/.writing-step_00000012/               under way; never read, removed by the next save
//
// A folder gets its name when all that is in it is on the disk: whoever dies at any moment leaves
// the checkpoints before whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "random/rng_tracker.h"
#include "train/trainer.h"

namespace shardproof {

// What training goes on from beside the trainer. The same on every rank, but for the streams.
struct CheckpointExtras {
  const RngTracker* rng = nullptr;    // null: no random streams are saved
  int64_t data_position = 0;          // samples of the data set that were taken
  std::string tokenizer_folder = {};  // "": no tokenizer goes along
};

// Every rank calls it, rank 0 writes; it returns, on every rank, when the checkpoint is there. Its
// step may have one already, which is replaced in one moment. Returns its folder.
//
// Forward   all_gather over the world of each tensor, and of each random stream; all_reduce of the
//           outcome
// Throws    Error(kBadInput) on every rank: a folder that cannot be written, no tokenizer where one
//           was named
std::string save_checkpoint(const std::string& root, const Trainer& trainer, MeshComm& comm,
                            const CheckpointExtras& extras = {});

// The folder of the newest complete checkpoint, by its step; none: nothing there. Passes over names
// that no save gives, and over folders whose state.json cannot be read or whose files have other
// sizes than it says.
std::optional<std::string> latest_checkpoint(const std::string& root);

struct LoadedCheckpoint {
  int64_t step = 0;
  int64_t data_position = 0;
  std::vector<std::string> streams_begun_anew = {};  // saved_streams.h says when
};

// Every rank reads its own pieces: no communication. `rng` null: saved streams are passed over.
// Throws Error(kBadInput): a file that is missing or has another size than state.json says, weights
// of another model, states of another optimizer, no such folder, no random streams for `rng`.
LoadedCheckpoint load_checkpoint(const std::string& folder, Trainer& trainer, const MeshComm& comm,
                                 RngTracker* rng = nullptr);

}  // namespace shardproof
