// One rank of a policy in reinforcement learning: model, plan, trainer, optimizer and scheduler,
// the reference's weights beside them, and what a framework asks of it in a step.
//
//   score -> reference -> train (several global batches) -> refit -> save     load, offload, ...
//
// Every rank makes the same calls with the same batch and takes its share. Source: NeMo-RL
// dtensor_policy_worker.py, DTensorPolicyWorker.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/cp/apply.h"
#include "parallel/tp/apply.h"
#include "policy/offload.h"
#include "policy/op_profile.h"
#include "policy/reference.h"
#include "policy/refit.h"
#include "policy/worker_memory.h"
#include "random/rng_tracker.h"
#include "train/trainer.h"

namespace shardproof {

struct PolicyOptions {
  TrainOptions train = {};  // of train(), where a call says nothing else
  TensorParallelOptions tensor_parallel = {};
  ContextParallelOptions context_parallel = {};
  int64_t train_global_batch_size = 0;  // <= 0: all samples of a call are one global batch
  BatchingOptions score_batching = {};  // of score() and reference_logprobs()
  int64_t logprob_batch_size = 0;       // <= 0: the rank's whole share at once
  bool keeps_reference = true;          // the weights as they are at the start
  std::optional<int64_t> random_seed = {};  // of its random streams; none: it keeps none
  DrawLog* draw_log = nullptr;              // hears of every draw from them; outlives the worker
};

// What one call may choose for itself.
struct TrainCall {
  std::optional<LossOptions> loss = {};
  int64_t global_batch_size = 0;  // 0: as the options say
  int64_t micro_batch_size = 0;   // 0: as the options say
  bool eval_mode = false;         // no gradients, no optimizer, no scheduler step
  std::function<void(int64_t index)> before_batch = {};  // of each global batch, from 0
  std::function<void(int64_t index)> after_batch = {};
};

struct WorkerReport {
  bool alive = false;
  int64_t rank = 0;
  std::string device;  // "cpu", "cuda:0"
  HeldBytes held = {};
  int64_t current_bytes = 0, peak_bytes = 0;  // of tensors that this thread made
  bool offloaded = false, profiling = false;
};

class PolicyWorker {
 public:
  // Plans in the order tp, cp, ulysses, checkpointing, fsdp. What `setup` refers to outlives the
  // worker. `weights` as Decoder takes them. Throws what the plans throw, before any communication.
  PolicyWorker(const RankSetup& setup, const ModelConfig& config,
               std::shared_ptr<const WeightMap> weights, const PolicyOptions& options);
  ~PolicyWorker();
  PolicyWorker(const PolicyWorker&) = delete;
  PolicyWorker& operator=(const PolicyWorker&) = delete;

  // Begins anew from these weights, one per parameter, of this rank's shapes: no step was taken,
  // the loss scale is the first one, random streams are where they began, and the reference is
  // they. For weights that another rank has read (parallel/hf/scatter_weights.h). No communication.
  void begin_with(const std::vector<at::Tensor>& masters);

  // One optimizer step for each global batch, neighbouring samples of `data`, then one of the
  // scheduler. What each step reports, in order. One that throws leaves the worker as it was before
  // that global batch.
  //
  // Throws Error(kBadInput): data that global batches do not divide, without a sample_mask, or with
  // a tensor whose dim 1 is not the sequence; a loss over tokens without a token_mask
  std::vector<StepMetrics> train(const Batch& data, const TrainCall& call = {});
  // Logprobs [B, S] of the whole batch, on every rank, in its order; 0 at position 0 and in
  // padding. `logprob_batch_size` 0: as the options say.
  //
  // Forward   what Trainer::score does; all_reduce(sum) over dp
  // Throws    as train, but for the masks
  at::Tensor score(const Batch& data, int64_t logprob_batch_size = 0);
  // The same by the reference's weights; the policy's are back to the bit however it ends. Throws
  // Error(kBadInput): no reference is kept.
  at::Tensor reference_logprobs(const Batch& data, int64_t logprob_batch_size = 0);

  // The weights to inference ranks outside of the mesh, which call receive_refit meanwhile.
  // `receivers` and all else as in send_refit.
  void refit(const RefitOptions& options, Communicator* receivers);

  // noise.h: on every weight of the policy; the reference's stay.
  void add_noise(double std, int64_t seed);

  // The optimizer's state, or parameters too, on the host until reload() or the next call that
  // needs them.
  void offload(Offloaded::What what);
  void reload();

  // The standard streams (rng_seeds.h), each tp rank with its own model parallel one. Throws
  // Error(kBadInput): no random_seed was given.
  RngTracker& rng();

  // checkpoint.h: of everything that training goes on from, random streams too if it keeps any.
  // Every rank calls them.
  std::string save(const std::string& root);
  void load(const std::string& folder);

  WorkerReport report() const;
  void reset_peak_memory() { memory_.reset_peak(); }
  void start_profiling();
  // The ops since then. Throws Error(kBadInput): it was not started.
  std::map<std::string, OpCost> stop_profiling();

  // Frees everything but its report, which says that it is not alive; any other call throws
  // Error(kBadInput) afterwards. A second time it does nothing. No communication.
  void shutdown();

  Trainer& trainer();  // reloaded if need be
  const PolicyOptions& options() const { return options_; }

 private:
  void check_alive() const;
  void seed_rng();
  at::Tensor score_now(const Batch& data, int64_t logprob_batch_size);

  RankSetup setup_;
  PolicyOptions options_;
  WorkerMemory memory_;
  std::unique_ptr<Decoder> model_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<ReferenceWeights> reference_;
  std::optional<RngTracker> rng_;
  std::optional<Offloaded> offloaded_;
  std::unique_ptr<OpProfile> profile_;
};

}  // namespace shardproof
