// One unit of fully sharded data parallelism: parameters that are gathered together before their
// use and freed after it, and whose gradients are reduced together.
//
//   sharded --start_gather()--> gathering --gather()--> whole --reshard()--> sharded
//
// A parameter's `master` is this rank's shard, in the wider type; the optimizer owns it. Its
// `tensor` is the whole leaf that the forward and autograd use; between its uses it has no memory.
// Tensors that autograd saved of it (the leaf, or views) see the same memory when it is allocated
// again.
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
  // Cuts `parameters`, which must still be views of the full tensors: appends the cut to their
  // layouts and makes shards and leaves. Leaves have `dtype` and are on `device`. No communication.
  // A unit without elements on this rank makes no calls, and one without a shard axis makes them
  // with itself.
  FsdpUnit(std::string name, std::vector<ParameterPtr> parameters, MeshComm& comm,
           const ShardAxes& axes, bool cpu_offload, at::ScalarType dtype, at::Device device);

  // Starts the gather of a sharded unit, else does nothing. Do not change the shards before
  // gather().
  //   all_gather over the shard axis of the shards in the leaves' dtype, one call
  void start_gather();
  // Makes the leaves whole: waits for a started gather, or gathers now.
  void gather();
  // Frees the leaves' memory. Waits for a gather in flight and drops its result.
  void reshard();

  // Takes the leaves' gradients of the last backward and adds them to those kept whole.
  void keep_gradients();
  // Starts to reduce the leaves' gradients and the kept ones; parameters without any count as
  // zeros.
  //   reduce_scatter(avg) over the shard axis in the wider type, one call
  void start_reduce();
  // Completes start_reduce() and adds the result to this rank's shards of the gradients.
  //   all_reduce(avg) over the replicate axis, one call
  void finish_reduce();
  // Returns the gradients' shards since the last call, one per parameter, in the wider type.
  std::vector<at::Tensor> take_gradients();
  // Call it after a step that threw: drops all gradients and frees the leaves. Does not wait for
  // calls in flight: gathered parameters are valid for the next step, and the next step waits for a
  // reduction and drops its result.
  void abandon_step();
  // Waits for the calls of an abandoned step, and drops their results.
  void settle();

 private:
  enum class State { kSharded, kGathering, kWhole };
  void make_shards(const ShardAxes& axes, at::ScalarType dtype, at::Device device);
  FlatShards flat_layout() const;
  at::Tensor packed_shards() const;
  at::Tensor packed_gradients();
  at::Tensor take_leaf_gradient(const Parameter& parameter) const;

  std::string name_;
  std::vector<ParameterPtr> parameters_;
  MeshComm& comm_;
  bool cpu_offload_;
  std::vector<at::Tensor> whole_;  // the leaves' memory, without autograd
  bool is_empty_;                  // has no elements
  Communicator* shard_axis_;
  Communicator* replicate_axis_;  // null: no copies
  FlatShards flat_;
  State state_ = State::kSharded;
  std::optional<PendingCollective> gathering_, reducing_;
  bool abandoned_ = false;             // the result of reducing_ belongs to a step that threw
  std::vector<at::Tensor> kept_;       // whole gradients of earlier microbatches
  std::vector<at::Tensor> gradients_;  // this rank's shards, reduced
};

}  // namespace shardproof
