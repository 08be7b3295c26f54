// The messages between the stages of a pipeline: activations to the next stage, gradients to the
// one before. From the tables of all ranks follows when each rank posts its receives and sends.
//
// Sends do not block. Each rank posts the receives from one peer in the order in which that peer
// sends, if need be before the action that reads them, so that a transport without tags (NCCL)
// pairs each receive with its own message. Posted where they are read, they pair wrongly in some
// tables, as in zbv with 2 ranks and 3 microbatches:
//
//   rank 0 sends    the activation of microbatch 2, then the gradient of microbatch 0
//   rank 1 reads    the gradient of microbatch 0, then the activation of microbatch 2
//
// Over NCCL, whose calls on one communicator run in order and whose sends end when their receive
// begins, this takes a communicator for each direction between two ranks.
//
// Sources: pytorch/pytorch torch/distributed/pipelining/schedules.py, _add_send_recv;
// NVIDIA/Megatron-LM megatron/core/pipeline_parallel/p2p_communication.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/training_choices.h"
#include "parallel/pp/placement.h"
#include "parallel/style/action.h"

namespace shardproof {

// The tensor that one stage hands to another. Boundary s is between stages s and s+1.
struct BoundaryTensor {
  enum class Kind { kActivation, kGradient };
  Kind kind = Kind::kActivation;
  int64_t boundary = 0;
  int64_t microbatch = 0;
  bool operator==(const BoundaryTensor&) const = default;
};

// A send or a receive.
struct Post {
  BoundaryTensor tensor;
  int64_t peer = 0;    // rank on pp
  bool sizes = false;  // the three sizes of the tensor (int64), which precede it
  bool operator==(const Post&) const = default;
};

struct ActionPosts {
  std::vector<Post> receives;           // posted before the action, in this order
  std::optional<BoundaryTensor> reads;  // received, and waited for before the action begins
  std::vector<Post> sends;              // posted when the action has ended
  bool operator==(const ActionPosts&) const = default;
};

// Leaves out backwards and weight gradients of the stages before `first_trained`, the first one in
// which something is trained: no gradient reaches them.
void leave_out_untrained(std::vector<std::vector<Action>>& tables, const Placement& placement,
                         int64_t first_trained);

// The posts of each action, by rank. Two stages on one rank hand over without a message. A stage
// sends a gradient if the stage before has a backward for it (leave_out_untrained). Asserts that
// the tables can be run, and names the actions that wait for one another.
std::vector<std::vector<ActionPosts>> pipeline_posts(
    const Placement& placement, const std::vector<std::vector<Action>>& tables,
    BoundaryShapes shapes = BoundaryShapes::kKnown);

// Equal at both ends of a message and of no other message of this pass or of the next one, so that
// a message of an abandoned pass is not taken for one of the next. Passes are numbered from 0.
int message_tag(const Post& post, const Placement& placement, int64_t microbatches, int64_t pass);
// "pp activation of microbatch 3 from stage 1 to 2, pass 7".
std::string message_label(const Post& post, int64_t pass);

}  // namespace shardproof
