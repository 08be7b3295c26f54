// Fully sharded data parallelism: a unit per layer, and a root unit of the parameters outside of
// all layers (embedding, last norm, head).
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

#include "parallel/data/unit.h"
#include "parallel/style/parameter_store.h"

namespace shardproof {

class FullyShardedModel : public ParameterStore {
 public:
  // Call it after the plans of tp, cp, ulysses and checkpointing, and before Decoder::materialise.
  // Every parameter gets its shard, its leaf (unit.h) and the layout of the shard. The mesh must
  // have more than one shard (asserted). No communication.
  FullyShardedModel(const StoreSetup& setup, const ShardAxes& axes, const FsdpOptions& options);
  ~FullyShardedModel() override;
  FullyShardedModel(const FullyShardedModel&) = delete;
  FullyShardedModel& operator=(const FullyShardedModel&) = delete;

  // Each microbatch's backward comes before the next one's forward (asserted). Without
  // reduce_each_microbatch gradients are reduced only after the last backward.
  //
  // Backward  per unit, in the order in which the backward finishes them: reduce_scatter(avg)
  //           over the shard axis, then all_reduce(avg) over the replicate axis. Every rank makes
  //           the same calls, even for unused parameters.
  void begin_microbatch(bool last) override;
  void finish_backward() override;
  std::vector<at::Tensor> take_gradients() override;
  void average(std::vector<at::Tensor>&) override {}
  void refresh() override {}
  // Drops whole parameters too. The next step waits for calls in flight.
  void abandon_step() override;
  // Waits for calls of an abandoned step, and drops their results and all whole parameters.
  void settle() override;
  // Gathers every unit.
  std::shared_ptr<void> hold_whole() override;

 private:
  class Gathered;
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
