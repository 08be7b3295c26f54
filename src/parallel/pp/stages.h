// The link between the stages of a pipeline: sends and receives of activations and gradients over
// the axis pp.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/mesh_comm.h"
#include "parallel/pp/messages.h"
#include "parallel/style/stage_link.h"

namespace shardproof {

// Posts what pipeline_posts says. A received activation is a leaf of its own, and a sent tensor
// exists until its send has ended. Two stages on one rank hand over without a message.
//
//   forward    send and recv of activations [b, s, E], to the next stage
//   backward   send and recv of their gradients, to the stage before
//   from_last  all_reduce(sum) over pp
//   settle     after drop() alone: all_gather of how many messages each rank has posted to each
//              other; a message with one end gets its other one, and its values are dropped
class PipelineStages : public StageLink {
 public:
  // Stages before `first_trained` have no backward, and no gradient goes to them. `boundaries` are
  // those behind each stage but the last; in a pass with backwards their streams lie behind each
  // other along dim 1. Messages have `dtype` and are on `device`.
  PipelineStages(const Pipeline& pipeline, int64_t first_trained, BoundaryShapes shapes,
                 std::vector<Boundary> boundaries, MeshComm& comm, at::ScalarType dtype,
                 at::Device device);

  bool is_first(int64_t chunk) const override;
  bool is_last(int64_t chunk) const override;
  const Boundary& entry(int64_t chunk) const override;
  const Boundary& exit(int64_t chunk) const override;
  bool has_backward(int64_t chunk) const override;
  void begin(const std::vector<Action>& actions, bool backward,
             std::vector<std::vector<int64_t>> stream_shapes) override;
  void before(const Action& action) override;
  void finish() override;
  void drop() override;
  void settle() override;
  at::Tensor input(const Action& forward) override;
  void output(const Action& forward, const at::Tensor& stream) override;
  at::Tensor output_grad(const Action& backward) override;
  void input_grad(const Action& backward, const at::Tensor& grad) override;
  at::Tensor from_last(const at::Tensor& value, std::string_view label) override;

 private:
  using Kind = BoundaryTensor::Kind;
  using Key = std::pair<int64_t, int64_t>;  // boundary, microbatch
  int64_t stage_of(int64_t chunk) const;
  const std::vector<ActionPosts>& posts_of(const std::vector<Action>& actions);
  at::Tensor take(Kind kind, int64_t boundary, int64_t microbatch);
  void send(const Post& post, const at::Tensor& tensor);
  PendingCollective receive(const Post& post);
  at::Tensor sizes_message(at::IntArrayRef sizes) const;
  std::vector<int64_t> shape_of(const BoundaryTensor& tensor) const;
  void give(Kind kind, int64_t boundary, int64_t microbatch, const at::Tensor& tensor);

  Pipeline pipeline_;
  int64_t first_trained_;
  BoundaryShapes boundary_shapes_;
  std::vector<Boundary> boundaries_;
  Communicator& pp_;
  at::ScalarType dtype_;
  at::Device device_;

  // This rank's posts, by the number of microbatches and whether the pass has backwards.
  std::map<std::pair<int64_t, bool>, std::vector<ActionPosts>> all_posts_;

  // Of the current pass.
  int64_t pass_ = -1;
  bool backward_ = false;
  std::vector<std::vector<int64_t>> shapes_;  // by microbatch
  std::vector<int64_t> exchanged_;            // the sizes that were received last; empty: known
  const std::vector<ActionPosts>* posts_ = nullptr;
  size_t next_ = 0;  // the posts of the next action
  const ActionPosts* current_ = nullptr;
  std::map<Key, PendingCollective> receives_[2];  // by kind
  std::map<Key, at::Tensor> handed_[2];           // between two stages of this rank, by kind
  std::vector<PendingCollective> sends_;
  bool dropped_ = false;  // and not settled
  // How many messages this rank has posted, by peer.
  std::vector<int64_t> sent_, received_;
};

}  // namespace shardproof
