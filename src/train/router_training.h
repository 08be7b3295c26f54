// What training adds to the routers and experts of a model: side losses, the update of selection
// biases, limited capacity, routes of scoring. Scoring and evaluation have none of it.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/expert_choices.h"
#include "train/limited_experts.h"
#include "train/route_replay.h"
#include "train/selection_bias.h"
#include "train/side_losses.h"

namespace shardproof {

class RouterTraining {
 public:
  // After all styles have replaced their layers. The model, the mesh's communicators and this
  // object live as long as one of them runs.
  RouterTraining(Decoder& model, const SideLossOptions& losses, const BiasRule& bias,
                 const CapacityRule& capacity, bool replays, const TokenCuts& cuts, MeshComm& comm,
                 at::Device device);

  // A step from its first forward to its last backward; `factor` is that of the main loss. end() is
  // called for an abandoned step too.
  void begin(const std::vector<Microbatch>& microbatches, const Batch& batch, double factor,
             int64_t first_sample);
  void end();
  // After end(): the values of the step's side losses.
  std::map<std::string, double> finish();
  // After finish(), and unless the step is skipped: the biases of the next step, in place.
  void move_biases(const std::vector<ParameterPtr>& parameters,
                   const std::vector<at::Tensor>& masters);
  int64_t dropped() const { return dropped_; }  // routes of the last step
  bool drops() const { return limit_ != nullptr; }
  RouteReplay* replay() { return replay_.get(); }  // null: routes are always live

 private:
  std::unique_ptr<SideLosses> losses_;       // null: there are none
  std::unique_ptr<SelectionBiases> biases_;  // null: they stay
  std::unique_ptr<LimitedExperts> limit_;    // null: experts take all
  std::unique_ptr<RouteReplay> replay_;
  int64_t dropped_ = 0;
};

}  // namespace shardproof
