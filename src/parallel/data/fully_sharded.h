// Applies fully sharded data parallelism to a decoder from outside: a unit per layer, and a root
// unit of the parameters outside of all layers (embedding, last norm, head).
//
//   forward    gathers the root; gathers layer i, starts to gather layer i+1, computes layer i and
//              frees it
//   backward   gathers layer i again, starts to gather layer i-1, computes layer i's gradients,
//              reduces them and frees the layer. The root stays whole between forward and backward.
//
// Between units a rank holds only its shards and the root.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "parallel/data/unit.h"

namespace shardproof {

class FullyShardedModel {
 public:
  // Call it after the plans of tp, cp, ulysses and checkpointing, and before Decoder::materialise.
  // Every parameter gets its shard, its leaf (unit.h) and the layout of the shard. `model` and
  // `comm` must outlive this object, and it every backward. The mesh must have more than one shard
  // (shard_axes, asserted). No communication.
  FullyShardedModel(Decoder& model, MeshComm& comm, const FsdpOptions& options,
                    at::ScalarType dtype, at::Device device);
  ~FullyShardedModel();
  FullyShardedModel(const FullyShardedModel&) = delete;
  FullyShardedModel& operator=(const FullyShardedModel&) = delete;

  // Call begin_microbatch before a microbatch's forward and finish_backward after its backward;
  // otherwise its gradients are lost. `last` marks the last microbatch of the optimizer step.
  // Without reduce_each_microbatch gradients are reduced only after the last backward.
  //
  // Backward  per unit, in the order in which the backward finishes them: reduce_scatter(avg)
  //           over the shard axis, then all_reduce(avg) over the replicate axis. Every rank makes
  //           the same calls, even for unused parameters.
  void begin_microbatch(bool last);
  void finish_backward();
  // Shards of the gradients since the last call, one per parameter of the model, in its order and
  // in the wider type.
  std::vector<at::Tensor> take_gradients();
  // Call it after a forward or backward that threw: drops gradients and frees whole parameters. It
  // does not wait for calls in flight; the next step does.
  void abandon_step();
  // Call it before the shards change, and before the model ends: waits for calls of an abandoned
  // step and drops their results and all whole parameters, which belong to the old shards.
  void settle();

  // While it exists all units are whole, and forwards neither gather nor free. Its end frees them,
  // even after an exception.
  class Gathered {
   public:
    explicit Gathered(FullyShardedModel& model);
    ~Gathered();
    Gathered(const Gathered&) = delete;
    Gathered& operator=(const Gathered&) = delete;

   private:
    FullyShardedModel& model_;
  };

 private:
  class UnitRegion;
  void before_forward(size_t unit);
  void after_forward(size_t unit);
  void before_backward(size_t unit);
  void after_backward(size_t unit);

  // The root first, then the layers in forward order.
  std::vector<std::unique_ptr<FsdpUnit>> units_;
  std::vector<std::pair<size_t, size_t>> places_;  // per parameter: unit, and index in it
  std::vector<bool> awaits_backward_;              // by unit
  FsdpOptions options_;
  bool reduces_ = true;  // whether this microbatch's gradients are reduced
  bool held_ = false;    // units stay whole until Gathered ends
};

}  // namespace shardproof
