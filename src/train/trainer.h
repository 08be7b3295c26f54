// Trains and scores one rank's share of a sharded model: microbatches, loss, gradients over the
// mesh, norm, clipping, optimizer. The probe gets every value that is compared. Dtypes follow
// model/precision.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/expert_choices.h"
#include "model/batch.h"
#include "model/decoder.h"
#include "observe/probe.h"
#include "optim/muon.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "parallel/style/style.h"
#include "train/batching.h"
#include "train/context_cut.h"
#include "train/grad_norm.h"
#include "train/loss.h"
#include "train/loss_scale.h"
#include "train/microbatch.h"
#include "train/step_runner.h"

namespace shardproof {

struct TrainOptions {
  LossOptions loss = {};
  OptimizerOptions optimizer = {};
  ScheduleOptions schedule = {};  // of optimizer.lr, with one scheduler step per training step
  double temperature = 1.0;       // divides the logits
  double max_norm = 1.0;          // <= 0: no clipping
  int64_t micro_batch_size = 0;   // <= 0: the rank's whole share
  BatchingOptions batching = {};  // with the micro_batch_size above
  CheckpointedRegions checkpointed = CheckpointedRegions::kNone;
  DiscardedOutputs discarded = DiscardedOutputs::kNone;
  GradNormOptions norm = {};
  LossScaleOptions loss_scale = {};
  SideLossOptions side_losses = {};  // of models with experts, as the next ones
  BiasRule selection_bias = {};
  CapacityRule capacity = {};
  bool replays_routes = false;  // steps take the routes of the last score_and_record()
};

struct StepMetrics {
  double loss = 0;
  double grad_norm = 0;
  double tokens = 0;                           // counted by the loss, global
  double sequences = 0;                        // with at least one counted token, global
  std::map<std::string, double> of_loss = {};  // of loss_metrics, SideLosses and heads, global
  bool skipped = false;                        // a gradient overflowed: nothing was updated
};

// Bytes of tensor memory that a rank holds between two steps, and of the gradients of its last
// update. Memory that tensors share counts once.
struct HeldBytes {
  int64_t parameters = 0;  // leaves and masters
  int64_t gradients = 0;
  int64_t optimizer = 0;
};

class RouterTraining;  // router_training.h

class Trainer {
 public:
  // `model` must have these styles applied and not be materialized; the trainer materializes it.
  Trainer(const RankSetup& setup, Decoder& model, const ParallelStyles& styles,
          const TrainOptions& options);

  // Makes one optimizer step on the whole global batch. Every rank gets the same batch and takes
  // its share (TokenCuts).
  //
  // The ranks of the position axes hold parts of the same sequences. Each gathers the logprobs of
  // whole sequences and computes the same loss; the backward keeps its own tokens.
  //
  // Forward   those of the model; all_gather of the logprobs over the position axes;
  //           all_reduce(sum) of the counts and the loss over the sample axes
  // Backward  those of the model and of the store; those of apply_gradient_rules; the store's
  //           average; those of grad_norm; with Muon those of WholeMatrix::gather
  //
  // A step that throws before its update leaves parameters, optimizer, scheduler and loss scale
  // unchanged, and the trainer ready for another step: it drops gradients and frees gathered
  // parameters. The update makes no collective, but when memory for it is missing, it leaves some
  // parameters updated and others not: restore() then. If a probe throws when it gets the update,
  // the step is done, and so is the scheduler step.
  //
  // Parameters that are not trainable stay unchanged, and the optimizer has no state for them.
  StepMetrics step(const Batch& batch);
  // Makes a step without a scheduler step, for one of several global batches of a call, which has a
  // OneSchedulerStep.
  StepMetrics step_at_same_rate(const Batch& batch);
  // The scheduler step of all training steps that are made while this object exists: its end makes
  // it, even after an exception, unless no step was made (NeMo-RL dtensor_policy_worker.py, train:
  // "increment scheduler after all batches").
  class OneSchedulerStep {
   public:
    explicit OneSchedulerStep(Trainer& trainer) : trainer_(trainer), before_(trainer.step_) {}
    ~OneSchedulerStep();
    OneSchedulerStep(const OneSchedulerStep&) = delete;
    OneSchedulerStep& operator=(const OneSchedulerStep&) = delete;

   private:
    Trainer& trainer_;
    int64_t before_;
  };
  // The metrics that step() would report of this batch, without gradients: nothing is updated, and
  // the norm is 0. The probe gets them as step 0.
  //
  // Forward   those of the model, with its parameters gathered once as in score(); the logprobs,
  //           counts and loss as in step()
  StepMetrics evaluate(const Batch& batch);
  // Logprobs of this rank's samples, microbatch by microbatch, without gradients. Sharded
  // parameters are gathered once, before the first microbatch, and freed at the end, even after an
  // exception.
  //
  //   returns   [B, S] wider float, in the batch's order; 0 in the rows of other dp ranks
  at::Tensor score(const Batch& batch);

  // The same; later steps choose the experts that this pass has chosen for each sample and
  // position, where the options say so. all_reduce(max) of the ids over all ranks at the end.
  at::Tensor score_and_record(const Batch& batch);
  // The first sample of the next step's batch in the batch that was recorded.
  void set_first_sample(int64_t sample) { first_sample_ = sample; }
  void forget_routes();

  // The observations that only other ranks make, which hold other chunks of the model.
  std::vector<std::string> observed_elsewhere() const;
  // The tokens of each microbatch of the last step or scoring pass.
  const std::vector<HeldTokens>& held() const { return runner_->held(); }
  void watch_actions(StepRunner::ActionWatch watch) { runner_->watch_actions(std::move(watch)); }
  void watch_tokens(StepRunner::TokenWatch watch) { runner_->watch_tokens(std::move(watch)); }
  // The tensors that the optimizer updates: one per parameter, this rank's shard in the wider type.
  const std::vector<at::Tensor>& masters() const { return masters_; }
  const std::vector<OptimizerState>& states() const { return states_; }
  const std::vector<ParameterPtr>& parameters() const { return parameters_; }
  HeldBytes held_bytes() const;
  // Gives the probe the current parameters and optimizer state, as those of the last step.
  void observe_state();
  int64_t step_count() const { return step_; }  // steps made
  const LossScaleState& loss_scale() const { return loss_scale_.state(); }
  // Without a state: the initial one. Does nothing when loss scaling is not enabled.
  void set_loss_scale(const std::optional<LossScaleState>& state) { loss_scale_.set_state(state); }
  int64_t schedule_steps() const { return schedule_steps_; }  // of the scheduler
  const TrainOptions& options() const { return options_; }
  const TokenCuts& token_cuts() const { return tokens_; }
  // Options that calls may change between two steps.
  void set_loss(const LossOptions& loss) { options_.loss = loss; }
  void set_batching(const BatchingOptions& batching, int64_t micro_batch_size);
  at::Device device() const { return setup_.device; }
  // Throws Error(kBadInput) for states of another optimizer.
  void check_states(const std::vector<OptimizerState>& states) const;
  // Restores the values of masters(), states(), step_count() and schedule_steps() from any mesh,
  // each of this rank's shape and dtype. Without `schedule_steps` the scheduler made one step with
  // each training step. Throws as check_states() does, with nothing changed.
  void restore(const std::vector<at::Tensor>& masters, std::vector<OptimizerState> states,
               int64_t step, std::optional<int64_t> schedule_steps = {});
  // Sets other weights of the same model, one per parameter, with the shapes of masters(), and
  // updates the leaves. Optimizer and scheduler stay. No communication, but it settles.
  void set_masters(const std::vector<at::Tensor>& masters);
  // The same, for the end of a pass without backwards that may have thrown: it makes no calls, and
  // the next step settles.
  void copy_masters(const std::vector<at::Tensor>& masters);
  // Waits for the calls that a step left in flight when it threw, and drops their results. The next
  // step does so too; call it where none follows. Every rank must have thrown, or call it later.
  void settle();

 private:
  class UnfinishedStep;
  void abandon_step();
  std::vector<Microbatch> microbatches(const Batch& batch, Pass pass) const;
  StepRunner::Options pass(int64_t step, bool backward) const;
  LossCounts count(const std::vector<Microbatch>& microbatches);
  LossInputs loss_inputs(const Microbatch& micro, const at::Tensor& logprobs) const;
  std::vector<LossMetric> run_with_loss(const std::vector<Microbatch>& microbatches,
                                        const LossCounts& counts,
                                        const StepRunner::Options& options);
  StepMetrics reduce_metrics(const std::vector<LossMetric>& addends, const LossCounts& counts);
  void observe_metrics(const StepMetrics& metrics, int64_t step);
  std::vector<at::Tensor> finish_gradients();
  bool has_muon(size_t index) const;
  std::vector<MuonStep> muon_steps(const std::vector<at::Tensor>& grads);
  void update(const std::vector<at::Tensor>& grads, const std::vector<MuonStep>& matrices);
  // `layout`: null for the parameter's. `leaf`: of Observation.
  void observe_step(ObservationKind kind, const Parameter& parameter, const at::Tensor& tensor,
                    const Layout* layout = nullptr, const at::Tensor& leaf = {});
  void observe_scalar(ObservationKind kind, const std::string& name, Phase phase, int64_t step,
                      double value);
  double grad_factor() const;
  double mean_over() const;

  RankSetup setup_;
  Decoder& model_;
  TrainOptions options_;
  int64_t step_ = 0;
  int64_t schedule_steps_ = 0;
  int64_t first_sample_ = 0;
  std::vector<ParameterPtr> parameters_;
  std::vector<at::Tensor> masters_;
  std::vector<OptimizerState> states_;
  LrSchedule schedule_;
  LossScale loss_scale_;
  ParallelStyles styles_;
  TokenCuts tokens_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<StepRunner> runner_;
  std::shared_ptr<RouterTraining> routers_;
  int64_t gradient_bytes_ = 0;
};

}  // namespace shardproof
