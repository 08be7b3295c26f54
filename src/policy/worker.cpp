#include "policy/worker.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "policy/checkpoint.h"
#include "policy/noise.h"
#include "policy/worker_calls.h"
#include "random/rng_seeds.h"

namespace shardproof {
namespace {

// Restores at its end the options that a call changed.
class CallChoices {
 public:
  explicit CallChoices(Trainer& trainer)
      : trainer_(trainer),
        loss_(trainer.options().loss),
        batching_(trainer.options().batching),
        micro_batch_size_(trainer.options().micro_batch_size) {}
  ~CallChoices() {
    trainer_.set_loss(loss_);
    trainer_.set_batching(batching_, micro_batch_size_);
  }
  CallChoices(const CallChoices&) = delete;
  CallChoices& operator=(const CallChoices&) = delete;

 private:
  Trainer& trainer_;
  LossOptions loss_;
  BatchingOptions batching_;
  int64_t micro_batch_size_;
};

}  // namespace

PolicyWorker::PolicyWorker(const RankSetup& setup, const ModelConfig& config,
                           std::shared_ptr<const WeightMap> weights, const PolicyOptions& options)
    : setup_(setup), options_(options) {
  const ParallelStyles styles = make_styles(options.parallel);
  model_ = std::make_unique<Decoder>(
      planned_model(config, std::move(weights), setup.comm, styles, options.frozen));
  trainer_ = std::make_unique<Trainer>(setup, *model_, styles, options.train);
  if (options_.keeps_reference) reference_.emplace(*trainer_);
  seed_rng();
}

PolicyWorker::~PolicyWorker() = default;

void PolicyWorker::check_alive() const {
  if (trainer_) return;
  throw_bad_input("the worker was shut down", "make another one");
}

Trainer& PolicyWorker::trainer() {
  check_alive();
  reload();
  return *trainer_;
}

void PolicyWorker::seed_rng() {
  if (!options_.random_seed) return;
  rng_.emplace(options_.draw_log);
  const Mesh& mesh = setup_.mesh;
  seed_streams(*rng_, *options_.random_seed,
               {.tp_rank = mesh.coordinate("tp", setup_.rank),
                .tp_size = mesh.size("tp"),
                .stage = mesh.coordinate("pp", setup_.rank),
                .stages = mesh.size("pp")});
}

RngTracker& PolicyWorker::rng() {
  check_alive();
  if (rng_) return *rng_;
  throw_bad_input("the worker keeps no random streams", "make it with a random_seed");
}

void PolicyWorker::begin_with(const std::vector<at::Tensor>& masters) {
  Trainer& trainer = this->trainer();
  trainer.restore(masters, std::vector<OptimizerState>(masters.size()), /*step=*/0);
  trainer.set_loss_scale(std::nullopt);
  trainer.forget_routes();
  if (reference_) reference_.emplace(trainer);
  seed_rng();
}

std::vector<StepMetrics> PolicyWorker::train(const Batch& data, const TrainCall& call) {
  Trainer& trainer = this->trainer();
  const CallChoices restored(trainer);
  if (call.loss) trainer.set_loss(*call.loss);
  trainer.set_batching(trainer.options().batching, call.micro_batch_size > 0
                                                       ? call.micro_batch_size
                                                       : options_.train.micro_batch_size);
  check_sequence_dims(data);
  const int64_t size =
      call.global_batch_size > 0 ? call.global_batch_size : options_.train_global_batch_size;
  std::vector<StepMetrics> metrics;
  const Trainer::OneSchedulerStep scheduled(trainer);
  for (const Batch& batch : global_batches(with_masks(data, trainer.options().loss), size)) {
    const auto index = static_cast<int64_t>(metrics.size());
    if (call.before_batch) call.before_batch(index);
    trainer.set_first_sample(index * batch.size());
    metrics.push_back(call.eval_mode ? trainer.evaluate(batch) : trainer.step_at_same_rate(batch));
    if (call.after_batch) call.after_batch(index);
  }
  return metrics;
}

at::Tensor PolicyWorker::score_now(const Batch& data, int64_t logprob_batch_size, bool record) {
  const CallChoices restored(*trainer_);
  trainer_->set_batching(options_.score_batching,
                         logprob_batch_size > 0 ? logprob_batch_size : options_.logprob_batch_size);
  const at::Tensor own = record ? trainer_->score_and_record(data) : trainer_->score(data);
  // The sum is the value of the rank that has the sample; equal copies over the other axes are not
  // added.
  return setup_.comm.along(trainer_->token_cuts().sample_axes)
      .all_reduce(own, ReduceOp::kSum, "logprobs of all samples");
}

at::Tensor PolicyWorker::score(const Batch& data, int64_t logprob_batch_size) {
  trainer();
  check_sequence_dims(data);
  return score_now(data, logprob_batch_size, /*record=*/true);
}

at::Tensor PolicyWorker::reference_logprobs(const Batch& data, int64_t logprob_batch_size) {
  Trainer& trainer = this->trainer();
  check_sequence_dims(data);
  if (!reference_) {
    throw_bad_input("the worker keeps no reference weights", "make it with keeps_reference");
  }
  const ReferenceWeights::InUse in_use(*reference_, trainer);
  return score_now(data, logprob_batch_size, /*record=*/false);
}

void PolicyWorker::refit(const RefitOptions& options, Communicator* receivers) {
  send_refit(weights_of(trainer()), options, setup_.comm, receivers, setup_.device);
}

void PolicyWorker::add_noise(double std, int64_t seed) {
  shardproof::add_noise(trainer(), setup_.comm, std, seed);
}

void PolicyWorker::offload(Offloaded::What what) {
  trainer();
  offloaded_.emplace(*trainer_, what);
}

void PolicyWorker::reload() {
  check_alive();
  if (!offloaded_) return;
  offloaded_->reload();
  offloaded_.reset();
}

std::string PolicyWorker::save(const std::string& root) {
  return save_checkpoint(root, trainer(), setup_.comm, {.rng = rng_ ? &*rng_ : nullptr});
}

void PolicyWorker::load(const std::string& folder) {
  load_checkpoint(folder, trainer(), setup_.comm, rng_ ? &*rng_ : nullptr);
  trainer_->forget_routes();
}

WorkerReport PolicyWorker::report() const {
  WorkerReport report{.alive = trainer_ != nullptr,
                      .rank = setup_.rank,
                      .device = setup_.device.str(),
                      .current_bytes = memory_.current_bytes(),
                      .peak_bytes = memory_.peak_bytes(),
                      .offloaded = offloaded_.has_value(),
                      .profiling = profile_ != nullptr};
  if (trainer_) report.held = trainer_->held_bytes();
  return report;
}

void PolicyWorker::start_profiling() {
  check_alive();
  profile_.reset();
  profile_ = std::make_unique<OpProfile>();
}

std::map<std::string, OpCost> PolicyWorker::stop_profiling() {
  check_alive();
  if (!profile_) {
    throw_bad_input("profiling was not started", "call start_profiling() before");
  }
  const auto costs = profile_->costs();
  profile_.reset();
  return costs;
}

void PolicyWorker::shutdown() {
  profile_.reset();
  offloaded_.reset();
  reference_.reset();
  rng_.reset();
  trainer_.reset();
  model_.reset();
}

}  // namespace shardproof
