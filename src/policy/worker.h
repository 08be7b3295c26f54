// One rank of a policy in reinforcement learning: model, plan, trainer, optimizer, scheduler and
// reference weights, with the calls that a framework makes in a step.
//
//   score -> reference -> train (several global batches) -> refit -> save     load, offload, ...
//
// Every rank must make the same calls with the same batch; it takes its share. Source: NeMo-RL
// dtensor_policy_worker.py, DTensorPolicyWorker.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "policy/offload.h"
#include "policy/op_profile.h"
#include "policy/planned_model.h"
#include "policy/reference.h"
#include "policy/refit.h"
#include "random/rng_tracker.h"
#include "tensor/tensor_memory.h"
#include "train/trainer.h"

namespace shardproof {

struct PolicyOptions {
  TrainOptions train = {};  // defaults of train()
  ParallelOptions parallel = {};
  std::vector<std::string> frozen = {};     // as in Decoder::freeze()
  int64_t train_global_batch_size = 0;      // <= 0: all samples of a call are one global batch
  BatchingOptions score_batching = {};      // of score() and reference_logprobs()
  int64_t logprob_batch_size = 0;           // <= 0: the rank's whole share at once
  bool keeps_reference = true;              // keeps the weights at the start
  std::optional<int64_t> random_seed = {};  // of its random streams; none: it has no streams
  DrawLog* draw_log = nullptr;              // gets every draw from them; must outlive the worker
};

// Options of a single call.
struct TrainCall {
  std::optional<LossOptions> loss = {};
  int64_t global_batch_size = 0;  // 0: the worker's option
  int64_t micro_batch_size = 0;   // 0: the worker's option
  bool eval_mode = false;         // no gradients, no optimizer, no scheduler step
  std::function<void(int64_t index)> before_batch = {};  // called for each global batch, from 0
  std::function<void(int64_t index)> after_batch = {};
};

struct WorkerReport {
  bool alive = false;
  int64_t rank = 0;
  std::string device;  // "cpu", "cuda:0"
  HeldBytes held = {};
  int64_t current_bytes = 0, peak_bytes = 0;  // of tensors made by this thread
  bool offloaded = false, profiling = false;
};

class PolicyWorker {
 public:
  // Applies the styles of make_styles(), and checkpointing before the parameters are sharded. The
  // objects that `setup` refers to must outlive the worker. `weights` are those of Decoder. Throws
  // the errors of the plans before any communication.
  PolicyWorker(const RankSetup& setup, const ModelConfig& config,
               std::shared_ptr<const WeightMap> weights, const PolicyOptions& options);
  ~PolicyWorker();
  PolicyWorker(const PolicyWorker&) = delete;
  PolicyWorker& operator=(const PolicyWorker&) = delete;

  // Restarts from these weights, one per parameter, of this rank's shapes: the step count is 0, the
  // loss scale and the random streams are initial, no routes are recorded, and the reference has
  // these weights. For weights that another rank has read (parallel/hf/scatter_weights.h), and for
  // a worker that goes on with other ones. No communication.
  void begin_with(const std::vector<at::Tensor>& masters);

  // Makes one optimizer step for each global batch (neighboring samples of `data`), then one
  // scheduler step. Returns the metrics of each step, in order.
  //
  // A call that throws in a later global batch leaves the worker as a call with those before it
  // would: their steps are made, and so is the scheduler step. To continue, call again with the
  // samples from that global batch on: the same call would train on the earlier ones a second time.
  // Of the first global batch it leaves no trace. trainer().step_count() counts the steps.
  //
  // Throws Error(kBadInput): data that global batches do not divide, without a sample_mask, or with
  // a tensor whose dim 1 is not the sequence; a loss over tokens without a token_mask
  std::vector<StepMetrics> train(const Batch& data, const TrainCall& call = {});
  // Logprobs [B, S] of the whole batch, on every rank, in its order; 0 at position 0 and in
  // padding. `logprob_batch_size` 0: the worker's option.
  //
  // Forward   as Trainer::score; all_reduce(sum) over dp
  // Throws    as train, except for the masks
  at::Tensor score(const Batch& data, int64_t logprob_batch_size = 0);
  // The same with the reference's weights. The policy's weights are restored bit for bit, even
  // after an exception. Throws Error(kBadInput) when no reference is kept.
  at::Tensor reference_logprobs(const Batch& data, int64_t logprob_batch_size = 0);

  // Sends the weights to inference ranks outside of the mesh, which must call receive_refit
  // meanwhile. The arguments are those of send_refit.
  void refit(const RefitOptions& options, Communicator* receivers);

  // Adds noise (noise.h) to every weight of the policy, not of the reference.
  void add_noise(double std, int64_t seed);

  // Moves the optimizer's state, or parameters too, to the host until reload() or the next call
  // that needs them.
  void offload(Offloaded::What what);
  void reload();

  // The standard streams (rng_seeds.h); each stage has its own, and each tp rank its own model
  // parallel one. Throws
  // Error(kBadInput) when no random_seed was given.
  RngTracker& rng();

  // Saves or loads the whole state of training (checkpoint.h), with random streams if it keeps any.
  // Every rank must call them.
  std::string save(const std::string& root);
  void load(const std::string& folder);

  WorkerReport report() const;
  void reset_peak_memory() { memory_.reset_peak(); }
  void start_profiling();
  // Returns the ops since start_profiling(). Throws Error(kBadInput) when it was not called.
  std::map<std::string, OpCost> stop_profiling();

  // As Trainer::settle(), for a worker whose last step threw and that ends.
  void settle() { trainer_->settle(); }
  // Frees everything except its report, which then says that it is not alive; any other call throws
  // Error(kBadInput). A second shutdown does nothing. No communication.
  void shutdown();

  Trainer& trainer();  // reloads it if needed
  const PolicyOptions& options() const { return options_; }

 private:
  void check_alive() const;
  void seed_rng();
  at::Tensor score_now(const Batch& data, int64_t logprob_batch_size, bool record);

  RankSetup setup_;
  PolicyOptions options_;
  TensorMemory memory_;
  std::unique_ptr<Decoder> model_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<ReferenceWeights> reference_;
  std::optional<RngTracker> rng_;
  std::optional<Offloaded> offloaded_;
  std::unique_ptr<OpProfile> profile_;
};

}  // namespace shardproof
