#include "train/router_training.h"

namespace shardproof {

RouterTraining::RouterTraining(Decoder& model, const SideLossOptions& losses, const BiasRule& bias,
                               const CapacityRule& capacity, bool replays, const TokenCuts& cuts,
                               MeshComm& comm, at::ScalarType wide, at::Device device) {
  if (losses.any()) losses_ = std::make_unique<SideLosses>(model, losses, cuts, comm, device);
  if (bias.rate != 0) {
    biases_ = std::make_unique<SelectionBiases>(model, bias, comm, wide, device);
  }
  if (capacity.factor != 0) {
    limit_ = std::make_unique<LimitedExperts>(model, capacity, cuts, comm, device);
  }
  if (replays) replay_ = std::make_unique<RouteReplay>(model, comm, device);
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

std::map<std::string, double> RouterTraining::finish(bool skipped) {
  if (biases_ && !skipped) biases_->update();
  if (limit_) dropped_ = limit_->take_dropped();
  return losses_ ? losses_->take_values() : std::map<std::string, double>();
}

std::map<int64_t, at::Tensor> RouterTraining::biases() const {
  return biases_ ? biases_->by_layer() : std::map<int64_t, at::Tensor>();
}

}  // namespace shardproof
