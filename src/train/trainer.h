// Trains and scores one rank's share of a sharded model: microbatches, loss, gradients over the
// mesh, norm, clipping, optimizer. Everything that a judge wants to see is told to the probe.
// Dtypes follow model/precision.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/batch.h"
#include "model/decoder.h"
#include "observe/probe.h"
#include "optim/optimizer.h"
#include "train/batching.h"
#include "train/context_cut.h"
#include "train/loss.h"
#include "train/microbatch.h"

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
  LossOptions loss;
  OptimizerOptions optimizer;
  double max_norm = 1.0;           // <= 0: no clipping
  int64_t micro_batch_size = 0;    // <= 0: the rank's whole share
  BatchingOptions batching = {};   // its micro_batch_size is the one above
  bool sequence_parallel = false;  // pads sequences to a multiple of tp
  // Of sequences over cp. Their length is padded to what cp, ulysses and tp can cut.
  ContextLayout context_layout = ContextLayout::kZigzag;
};

struct StepMetrics {
  double loss = 0;
  double grad_norm = 0;
  double tokens = 0;     // counted by the loss, global
  double sequences = 0;  // with at least one counted token, global
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
  // Backward  those of the model; all_reduce(sum) of partial gradients over tp, all_reduce(avg) of
  //           gradients over dp, cp and ulysses; all_reduce(sum) of the norm over tp
  StepMetrics step(const Batch& batch);
  // Logprobs [b, S] of this rank's samples, microbatch by microbatch, without gradients.
  void score(const Batch& batch);

  // What the optimizer works on: one per parameter, this rank's shard in the wider type.
  const std::vector<at::Tensor>& masters() const { return masters_; }
  const std::vector<OptimizerState>& states() const { return states_; }
  const std::vector<ParameterPtr>& parameters() const { return parameters_; }

 private:
  at::Tensor logprobs_of(const Microbatch& micro, int64_t index, int64_t step);
  at::Tensor sequence_logprobs(const Microbatch& micro, const ContextCut& cut,
                               const StepContext& context);
  std::vector<Microbatch> microbatches_of(const Batch& batch) const;
  LossCounts count(const std::vector<Microbatch>& microbatches);
  std::vector<at::Tensor> finish_gradients();
  void update(const std::vector<at::Tensor>& grads);
  void observe_step(const std::string& prefix, const Parameter& parameter,
                    const at::Tensor& tensor);
  void observe_scalar(const std::string& name, Phase phase, double value);
  int64_t seq_multiple() const;
  double grad_factor() const;

  RankSetup setup_;
  Decoder& model_;
  TrainOptions options_;
  int64_t step_ = 0;
  std::vector<ParameterPtr> parameters_;
  std::vector<at::Tensor> masters_;
  std::vector<OptimizerState> states_;
};

}  // namespace shardproof
