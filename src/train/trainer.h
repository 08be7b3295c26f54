// Trains and scores one rank's share of a sharded model: microbatches, loss, gradients over the
// mesh, norm, clipping, optimizer. Everything that a judge wants to see is told to the probe.
// Dtypes follow model/precision.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/batch.h"
#include "model/decoder.h"
#include "observe/probe.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "parallel/data/fully_sharded.h"
#include "train/activation_checkpoint.h"
#include "train/batching.h"
#include "train/context_cut.h"
#include "train/grad_norm.h"
#include "train/loss.h"
#include "train/loss_scale.h"
#include "train/microbatch.h"
#include "train/microbatch_gradients.h"

namespace shardproof {

// One rank's surroundings, made once and passed down by reference.
struct RankSetup {
  const Mesh& mesh;
  int64_t rank;
  MeshComm& comm;
  Probe& probe;
  at::ScalarType dtype;  // of parameters and activations
  at::Device device;
};

struct TrainOptions {
  LossOptions loss = {};
  OptimizerOptions optimizer = {};
  ScheduleOptions schedule = {};   // of optimizer.lr, one scheduler step per training step
  double temperature = 1.0;        // logits are divided by it
  double max_norm = 1.0;           // <= 0: no clipping
  int64_t micro_batch_size = 0;    // <= 0: the rank's whole share
  BatchingOptions batching = {};   // its micro_batch_size is the one above
  bool sequence_parallel = false;  // pads sequences to a multiple of tp
  // Of sequences over cp. Their length is padded to what cp, ulysses and tp can cut.
  ContextLayout context_layout = ContextLayout::kZigzag;
  FsdpOptions data_parallel = {};
  CheckpointedRegions checkpointed = CheckpointedRegions::kNone;
  GradNormOptions norm = {};
  LossScaleOptions loss_scale = {};
};

struct StepMetrics {
  double loss = 0;
  double grad_norm = 0;
  double tokens = 0;                           // counted by the loss, global
  double sequences = 0;                        // with at least one counted token, global
  std::map<std::string, double> of_loss = {};  // what loss_metrics names, global
  bool skipped = false;                        // a gradient overflowed: nothing was updated
};

// Bytes of tensor memory that a rank holds between two steps, and of the gradients that its last
// update took. Memory that tensors share counts once.
struct HeldBytes {
  int64_t parameters = 0;  // leaves and masters
  int64_t gradients = 0;
  int64_t optimizer = 0;
};

class Trainer {
 public:
  // `model` has its plan applied but is not materialised yet: the trainer does that.
  Trainer(const RankSetup& setup, Decoder& model, const TrainOptions& options);

  // One optimizer step on the whole global batch (every rank gets the same batch and takes its
  // share).
  //
  // The ranks of cp and ulysses hold parts of the same sequences. Each gathers the logprobs of the
  // whole ones and computes the same loss; the backward keeps its own tokens.
  //
  // Forward   those of the model; all_gather of the logprobs over cp and ulysses; all_reduce(sum)
  // of
  //           the counts and the loss over dp
  // Backward  those of the model, and of fsdp; all_reduce(sum) of partial gradients over tp;
  //           without fsdp all_reduce(avg) of gradients over dp, cp and ulysses; what grad_norm
  //           does
  //
  // One that throws before its update leaves parameters, optimizer, scheduler and loss scale as
  // they were, and the trainer ready for another: its gradients are dropped, gathered parameters
  // freed. The update calls nobody; a probe that throws when it is told of it finds the step taken.
  //
  // Parameters that are not trainable stay as they are: the optimizer has no state of them.
  StepMetrics step(const Batch& batch);
  // The same, but the scheduler stays: for one of several global batches of a call, which
  // advance_schedule() ends (NeMo-RL dtensor_policy_worker.py, train: "increment scheduler after
  // all batches").
  StepMetrics step_at_same_rate(const Batch& batch);
  void advance_schedule() { ++schedule_steps_; }
  // What step() would report of this batch, without gradients: nothing is updated, the norm is 0.
  // The probe hears of it as of step 0.
  //
  // Forward   those of the model, its parameters gathered once as in score(); the logprobs, counts
  //           and loss as in step()
  StepMetrics evaluate(const Batch& batch);
  // Logprobs of this rank's samples, microbatch by microbatch, without gradients. Sharded
  // parameters are gathered once, before the first, and freed however it ends.
  //
  //   returns   [B, S] wider float, in the batch's order; 0 in the rows of other dp ranks
  at::Tensor score(const Batch& batch);

  // What the last step or scoring pass worked on, microbatch by microbatch.
  const std::vector<HeldTokens>& held() const { return held_; }
  // What the optimizer works on: one per parameter, this rank's shard in the wider type.
  const std::vector<at::Tensor>& masters() const { return masters_; }
  const std::vector<OptimizerState>& states() const { return states_; }
  const std::vector<ParameterPtr>& parameters() const { return parameters_; }
  HeldBytes held_bytes() const;
  // Tells the probe of parameters and optimizer state as they are, as of the last step.
  void observe_state();
  int64_t step_count() const { return step_; }  // steps taken
  const LossScaleState& loss_scale() const { return loss_scale_.state(); }
  void set_loss_scale(const LossScaleState& state) { loss_scale_.set_state(state); }
  int64_t schedule_steps() const { return schedule_steps_; }  // of the scheduler
  const TrainOptions& options() const { return options_; }
  // What calls may choose anew; between two of them.
  void set_loss(const LossOptions& loss) { options_.loss = loss; }
  void set_batching(const BatchingOptions& batching, int64_t micro_batch_size);
  at::Device device() const { return setup_.device; }
  // Puts back what masters(), states(), step_count() and schedule_steps() gave, on any mesh, each
  // of this rank's shape and dtype. Without `schedule_steps` the scheduler made one with each step.
  // Throws Error(kBadInput), nothing changed: states of another optimizer.
  void restore(const std::vector<at::Tensor>& masters, std::vector<OptimizerState> states,
               int64_t step, std::optional<int64_t> schedule_steps = {});
  // Other weights for the same model, one per parameter, of masters()' shapes: what the forward
  // uses follows. Optimizer and scheduler stay. No communication, but a step that threw may have
  // left a gather under way, which is waited for.
  void set_masters(const std::vector<at::Tensor>& masters);

 private:
  class UnfinishedStep;
  bool shards_parameters() const;
  void abandon_step();
  std::vector<at::Tensor> local_gradients();
  at::Tensor logprobs_of(const Microbatch& micro, int64_t index, int64_t step);
  at::Tensor sequence_logprobs(const Microbatch& micro, const ContextCut& cut,
                               const StepContext& context);
  LossCounts count(const std::vector<Microbatch>& microbatches);
  LossInputs loss_inputs(const Microbatch& micro, const at::Tensor& logprobs) const;
  StepMetrics reduce_metrics(const std::vector<LossMetric>& addends, const LossCounts& counts);
  void observe_metrics(const StepMetrics& metrics, int64_t step);
  std::vector<at::Tensor> finish_gradients();
  void update(const std::vector<at::Tensor>& grads);
  void observe_step(const std::string& prefix, const Parameter& parameter,
                    const at::Tensor& tensor);
  void observe_scalar(const std::string& name, Phase phase, int64_t step, double value);
  double grad_factor() const;
  double mean_over() const;

  RankSetup setup_;
  Decoder& model_;
  TrainOptions options_;
  int64_t step_ = 0;
  int64_t schedule_steps_ = 0;
  std::vector<ParameterPtr> parameters_;
  std::vector<at::Tensor> masters_;
  std::vector<OptimizerState> states_;
  LrSchedule schedule_;
  LossScale loss_scale_;
  MicrobatchGradients kept_;  // without sharded_
  std::vector<HeldTokens> held_;
  std::unique_ptr<FullyShardedModel> sharded_;  // null: parameters are replicated
  std::optional<ContextCut> cut_;               // of the microbatch whose backward comes next
  int64_t gradient_bytes_ = 0;
};

}  // namespace shardproof
