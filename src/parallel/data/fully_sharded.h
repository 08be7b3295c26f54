// Fully sharded data parallelism applied to a decoder from outside: a unit per layer, and a root
// unit of what no layer has (embedding, last norm, head).
//
//   forward    root gathered; layer i gathered, layer i+1 on its way, layer i computes, is freed
//   backward   layer i gathered again, layer i-1 on its way, layer i's gradients; they are reduced
//              and the layer is freed. The root stays whole between forward and backward.
//
// Between units a rank holds its shards alone, and the root.
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
  // After the plans of tp, cp, ulysses and checkpointing, before Decoder::materialise: every
  // parameter gets its shard and its leaf here (unit.h), and the layout of the shard. `model` and
  // `comm` must outlive this, and this every backward. The mesh has more than one shard
  // (shard_axes), asserted. No communication.
  FullyShardedModel(Decoder& model, MeshComm& comm, const FsdpOptions& options,
                    at::ScalarType dtype, at::Device device);
  ~FullyShardedModel();
  FullyShardedModel(const FullyShardedModel&) = delete;
  FullyShardedModel& operator=(const FullyShardedModel&) = delete;

  // Before a microbatch's forward and after its backward; without a call in between, its gradients
  // are lost. `last`: of the optimizer step. Without reduce_each_microbatch gradients are reduced
  // after the last backward only.
  //
  // Backward  per unit, in the order in which backward leaves them: reduce_scatter(avg) over the
  //           shard axis, then all_reduce(avg) over the replicate axis. Every rank makes the same
  //           calls, whatever its parameters were used for.
  void begin_microbatch(bool last);
  void finish_backward();
  // Shards of the gradients since the last call, one per parameter of the model, in its order and
  // the wider type.
  std::vector<at::Tensor> take_gradients();
  // After a forward or backward that threw: gradients are dropped, whole parameters freed. Waits
  // for no call: what is under way is waited for by whoever comes next.
  void abandon_step();
  // Before the shards change: what an abandoned step has under way, or left whole, is of the old
  // ones. It is waited for, and dropped.
  void forget_parameters();

  // While it lives all units are whole, and forwards neither gather nor free. However it ends, they
  // are freed.
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
  std::vector<std::pair<size_t, size_t>> places_;  // of each parameter: unit, index in it
  std::vector<bool> awaits_backward_;              // by unit
  FsdpOptions options_;
  bool reduces_ = true;  // this microbatch's gradients
  bool held_ = false;    // whole until Gathered ends
};

}  // namespace shardproof
