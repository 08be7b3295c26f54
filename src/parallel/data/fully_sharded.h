// Fully sharded data parallelism: units for each layer, and for the root of each chunk, which are
// its parameters outside of all layers (embedding, last norm, head). A region's parameters share a
// unit if their gradients are means over the same axes; dense weights and experts do not.
//
//   forward    gathers the root; gathers layer i, starts to gather layer i+1, computes layer i and
//              frees it
//   backward   gathers layer i again, starts to gather layer i-1, computes layer i's gradients,
//              reduces them and frees the layer. The root stays whole between forward and backward.
//
// Between units a rank holds only its shards and the roots.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "parallel/data/unit.h"
#include "parallel/style/parameter_store.h"

namespace shardproof {

class FullyShardedModel : public ParameterStore {
 public:
  // Call it after the plans of tp, cp, ulysses and checkpointing, after Decoder::set_chunks, and
  // before Decoder::materialise. Every parameter gets its shard, its leaf (unit.h) and the layout
  // of the shard. The mesh must have more than one shard (asserted). No communication. Throws
  // Error(kRefused) for a parameter that two chunks of this rank use.
  FullyShardedModel(const StoreSetup& setup, const FsdpOptions& options);
  ~FullyShardedModel() override;
  FullyShardedModel(const FullyShardedModel&) = delete;
  FullyShardedModel& operator=(const FullyShardedModel&) = delete;

  // Several microbatches may be between their forward and their backward. A unit's gradients are
  // reduced when those of a microbatch are complete; without reduce_each_microbatch, when those of
  // the step are.
  //
  // Backward  per unit, in the order in which the backward finishes them: reduce_scatter(avg)
  //           over the shard axis, then all_reduce(avg) over the replicate axis. Every rank makes
  //           the same calls, even for unused parameters.
  void before(const Action& action, Complete complete) override;
  void after(const Action& action, Complete complete) override;
  std::vector<at::Tensor> take_gradients() override;
  void average(std::vector<at::Tensor>&) override {}
  void refresh() override {}
  at::Tensor leaf_of(const Parameter&) const override { return {}; }
  // Drops whole parameters too. The next step waits for calls in flight.
  void abandon_step() override;
  // Waits for calls of an abandoned step, and drops their results and all whole parameters.
  void settle() override;
  // Gathers every unit.
  std::shared_ptr<void> hold_whole() override;

 private:
  class Gathered;
  class RegionHooks;
  // A part of a chunk whose parameters are whole at the same time.
  struct UnitRegion {
    int64_t chunk;
    bool is_root;
    std::vector<FsdpUnit*> units = {};
    int64_t open = 0;          // microbatches whose backward is still to come
    bool in_backward = false;  // the backward of the current action is still to come
  };
  void add_region(const StoreSetup& setup, const std::string& name, UnitRegion region,
                  const std::vector<ParameterPtr>& parameters);
  std::vector<FsdpUnit*> add_units(const StoreSetup& setup, const std::string& name,
                                   const std::vector<ParameterPtr>& parameters);
  UnitRegion* next_in_chunk(const UnitRegion& region, int64_t step);
  void start_gather(UnitRegion* region);
  void before_forward(UnitRegion& region);
  void after_forward(UnitRegion& region);
  void before_backward(UnitRegion& region);
  void after_backward(UnitRegion& region);
  void finish_gradients(UnitRegion& region);

  std::vector<std::unique_ptr<FsdpUnit>> units_;
  std::vector<std::pair<size_t, size_t>> places_;  // per parameter: unit, and index in it
  // The root of each chunk and then its layers, in forward order.
  std::vector<std::unique_ptr<UnitRegion>> regions_;
  FsdpOptions options_;
  bool reduces_ = true;  // whether the gradients of this action are reduced
  bool held_ = false;    // units stay whole until Gathered ends
};

}  // namespace shardproof
