// A trainer's state on disk, as full tensors, so that every mesh can read what any mesh wrote.
//
//   <root>/step_00000012/model.safetensors       the weights under their Hugging Face names, in the
//                                                wider type, as the optimizer has them
//                        optimizer.safetensors   "exp_avg.<weight>", "exp_avg_sq.<weight>",
//                                                "momentum_buffer.<weight>"; none before a step
//                        rng.safetensors         saved_streams.h; where a tracker was given
//                        tokenizer.json ..       copies; where a folder was given
//                        state.json              {"format": 1, "step": 12, "schedule_steps": 9,
//                                                 "optimizer_steps": 11,
//                                                 "fewer_optimizer_steps": {weight: 7},
//                                                 "loss_scale": {..}, with loss scaling only;
//                                                 "data_position": 480, "rng": {..},
//                                                 "files": {name: bytes}}
//   <root>/.writing-step_00000012/               unfinished; never read, removed by the next save
//
// A folder gets its name when all of its contents are on the disk, so that a crash at any time
// leaves earlier checkpoints whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "random/rng_tracker.h"
#include "train/trainer.h"

namespace shardproof {

// The state of training besides the trainer. It is the same on every rank, except for the streams.
struct CheckpointExtras {
  const RngTracker* rng = nullptr;    // null: no random streams are saved
  int64_t data_position = 0;          // samples of the data set that were used
  std::string tokenizer_folder = {};  // "": no tokenizer is saved
};

// Saves a checkpoint. Every rank must call it; rank 0 writes. It returns on every rank when the
// checkpoint is complete. An existing checkpoint of the same step is replaced atomically. Returns
// the folder.
//
// Forward   all_gather over the world of each tensor, and of each random stream; all_reduce of the
//           outcome
// Throws    Error(kBadInput) on every rank: a folder that cannot be written, a tokenizer folder
//           without a tokenizer, an existing checkpoint of the same step on a file system that
//           cannot exchange two folders (publish_folder.h)
std::string save_checkpoint(const std::string& root, const Trainer& trainer, MeshComm& comm,
                            const CheckpointExtras& extras = {});

// The folder of the newest complete checkpoint, by its step; none when there is none. Ignores names
// that no save gives, and folders whose state.json is unreadable or whose files have other sizes
// than it says.
std::optional<std::string> latest_checkpoint(const std::string& root);

struct LoadedCheckpoint {
  int64_t step = 0;
  int64_t data_position = 0;
  std::vector<std::string> streams_begun_anew = {};  // saved_streams.h says when
};

// Loads a checkpoint. Every rank must call it, and reads its own pieces. With `rng` null, saved
// streams are ignored. A trainer with loss scaling begins with its initial scale when the run that
// saved had none.
//
// Forward   all_reduce(min) over the world of the outcome
// Throws    Error(kBadInput) on every rank when one finds a missing file or one with another size
//           than state.json says, weights of another model, states of another optimizer, a missing
//           folder, or a checkpoint without random streams for `rng`. Then the trainers and `rng`
//           of all ranks are unchanged.
LoadedCheckpoint load_checkpoint(const std::string& folder, Trainer& trainer, MeshComm& comm,
                                 RngTracker* rng = nullptr);

}  // namespace shardproof
