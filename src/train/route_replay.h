// Training with the routes of scoring: the experts that a model chose when it scored a batch are
// chosen again when it trains on it, although its weights may have changed since. Weights and
// gradients come from the live logits (model/moe/route_record.h).
//
// Source: NVIDIA/Megatron-LM megatron/core/transformer/moe/router_replay.py. Golden:
// golden/kept_routes.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "model/moe/route_record.h"

namespace shardproof {

class RouteReplay {
 public:
  // Wraps the layers that select experts, after all styles have replaced theirs. `comm` must
  // outlive the model.
  RouteReplay(Decoder& model, MeshComm& comm, at::Device device);

  // The forwards of one pass over a whole batch. The record takes effect with end_record(); one
  // that a pass has begun and not ended has none.
  void begin_record(int64_t samples, int64_t positions);
  // all_reduce(max) of the record over all ranks
  void end_record();
  void drop_record() { made_.reset(); }
  void forget() { kept_.reset(); }

  // Forwards take the record's ids, if there is one, for samples from `first_sample` on.
  void begin_replay(int64_t first_sample);
  void end_replay() { replays_ = false; }

  at::Tensor ids(int64_t layer, const at::Tensor& live, const StepContext& context);

 private:
  std::vector<int64_t> layers_;
  RouterRule rule_;
  MeshComm& comm_;
  at::Device device_;
  std::optional<RouteRecord> made_, kept_;
  bool replays_ = false;
  int64_t first_sample_ = 0;
};

}  // namespace shardproof
