// One unit of fully sharded data parallelism: parameters that are gathered together before they
// are used, freed after it, and whose gradients are reduced together.
//
//   sharded --start_gather()--> gathering --gather()--> whole --reshard()--> sharded
//
// A parameter's `master` is this rank's shard, in the wider type: what the optimizer owns. Its
// `tensor` is the whole leaf that the forward and autograd use; between its uses it has no memory.
// What autograd saved of it (the leaf, or views) sees the same memory when it comes back.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/slot.h"
#include "parallel/data/flat_shards.h"
#include "parallel/data/shard_axes.h"

namespace shardproof {

class FsdpUnit {
 public:
  // Cuts `parameters`, which are views of the full tensors still: appends the cut to their layouts
  // and makes shards and leaves. Leaves have `dtype` and are on `device`. No communication.
  FsdpUnit(std::string name, std::vector<ParameterPtr> parameters, MeshComm& comm,
           const FsdpOptions& options, at::ScalarType dtype, at::Device device);

  const std::string& name() const { return name_; }
  const std::vector<ParameterPtr>& parameters() const { return parameters_; }
  bool whole() const { return state_ == State::kWhole; }

  // Starts the gather of a sharded unit, else nothing. The shards stay as they are until gather().
  //   all_gather over the shard axis of the shards in the leaves' dtype, one call
  void start_gather();
  // The leaves are whole afterwards: waits for what was started, or gathers now.
  void gather();
  // Frees the leaves' memory. A gather under way is waited for, and dropped.
  void reshard();

  // The leaves' gradients of the last backward are taken away and added to those kept whole.
  void keep_gradients();
  // Starts to reduce the leaves' gradients and those kept; parameters without any count as zeros.
  //   reduce_scatter(avg) over the shard axis in the wider type, one call
  void start_reduce();
  // Ends what start_reduce() began and adds it to this rank's shards of the gradients.
  //   all_reduce(avg) over the replicate axis, one call
  void finish_reduce();
  // The gradients' shards since the last call, one per parameter, in the wider type.
  std::vector<at::Tensor> take_gradients();
  // After a step that threw: all gradients are dropped and the leaves freed. Waits for no call:
  // parameters on their way are as good for the next step, and a reduction under way is waited
  // for, and dropped, where the next one begins.
  void abandon_step();

 private:
  enum class State { kSharded, kGathering, kWhole };
  void make_shards(const ShardAxes& axes, at::ScalarType dtype, at::Device device);
  FlatShards flat_layout() const;
  std::vector<at::Tensor> shards() const;
  at::Tensor packed_shards() const;
  at::Tensor packed_gradients();
  at::Tensor take_leaf_gradient(const Parameter& parameter) const;

  std::string name_;
  std::vector<ParameterPtr> parameters_;
  MeshComm& comm_;
  bool cpu_offload_;
  std::vector<at::Tensor> whole_;  // the leaves' memory, seen past autograd
  Communicator* shard_axis_;
  Communicator* replicate_axis_;  // null: no copies
  FlatShards flat_;
  State state_ = State::kSharded;
  std::optional<PendingCollective> gathering_, reducing_;
  bool abandoned_ = false;             // what reducing_ brings belongs to a step that threw
  std::vector<at::Tensor> kept_;       // whole gradients of earlier microbatches
  std::vector<at::Tensor> gradients_;  // this rank's shards, reduced
};

}  // namespace shardproof
