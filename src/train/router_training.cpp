#include "train/router_training.h"

namespace shardproof {

RouterTraining::RouterTraining(Decoder& model, const SideLossOptions& losses, const BiasRule& bias,
                               const CapacityRule& capacity, bool replays, const TokenCuts& cuts,
                               MeshComm& comm, at::Device device) {
  if (losses.any()) losses_ = std::make_unique<SideLosses>(model, losses, cuts, comm, device);
  if (replays) replay_ = std::make_unique<RouteReplay>(model, comm, device);
  // Around the replay, whose routes are those of the step.
  if (bias.rate != 0) biases_ = std::make_unique<SelectionBiases>(model, bias, comm, device);
  if (capacity.factor != 0) {
    limit_ = std::make_unique<LimitedExperts>(model, capacity, cuts, comm, device);
  }
}

void RouterTraining::begin(const std::vector<Microbatch>& microbatches, const Batch& batch,
                           double factor, int64_t first_sample) {
  if (losses_) losses_->begin(microbatches, batch, factor);
  if (biases_) biases_->begin();
  if (limit_) limit_->begin(batch.seq_len());
  if (replay_) replay_->begin_replay(first_sample);
}

void RouterTraining::end() {
  if (losses_) losses_->end();
  if (biases_) biases_->end();
  if (limit_) limit_->end();
  if (replay_) replay_->end_replay();
}

std::map<std::string, double> RouterTraining::finish() {
  if (biases_) biases_->reduce();
  if (limit_) dropped_ = limit_->take_dropped();
  return losses_ ? losses_->take_values() : std::map<std::string, double>();
}

void RouterTraining::move_biases(const std::vector<ParameterPtr>& parameters,
                                 const std::vector<at::Tensor>& masters) {
  if (biases_) biases_->move(parameters, masters);
}

}  // namespace shardproof
