// Runs the forwards and backwards of one rank over its microbatches: for a training step, for
// scoring and for evaluation.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "model/open_weights.h"
#include "observe/probe.h"
#include "parallel/style/style.h"
#include "train/context_cut.h"
#include "train/microbatch.h"

namespace shardproof {

// One rank's environment, made once and passed by reference.
struct RankSetup {
  const Mesh& mesh;
  int64_t rank;
  MeshComm& comm;
  Probe& probe;
  at::ScalarType dtype;  // of parameters and activations
  at::Device device;
};

class StepRunner {
 public:
  struct Options {
    int64_t step = 0;
    bool backward = false;     // false: forwards alone, with the store's parameters held whole
    double temperature = 1.0;  // divides the logits
    double grad_scale = 1.0;   // StepContext::grad_scale
  };
  // Gets the logprobs [b, S] of a microbatch, where the rank holds the model's last chunk: the
  // model's, and in a pass with backwards those of each extra head. Returns the scalar from which
  // its backward starts; undefined in a pass without backwards.
  using AtLogprobs =
      std::function<at::Tensor(size_t microbatch, const std::vector<at::Tensor>& logprobs)>;

  // Called at the begin and at the end of each action of a rank in a pipeline.
  using ActionWatch = std::function<void(const Action& action, int64_t step, bool begins)>;
  void watch_actions(ActionWatch watch) { watch_ = std::move(watch); }

  // Called before each action with the token map of its observations, [b, s] (Observation), so that
  // who watches calls knows the tokens of those before the first observation.
  using TokenWatch = std::function<void(const at::Tensor& token_map)>;
  void watch_tokens(TokenWatch watch) { token_watch_ = std::move(watch); }

  // The model, the store and what `setup` refers to outlive the runner.
  StepRunner(const RankSetup& setup, Decoder& model, const ParallelStyles& styles,
             ParameterStore& store);

  // Makes the actions of the styles' schedule, in order.
  //
  // Forward   those of the model and of the stage link; all_gather of the logprobs over the axes of
  //           positions
  // Backward  those of the model, of the stage link and of the store
  // A pass that throws is forgotten.
  void run(const std::vector<Microbatch>& microbatches, const Options& options,
           const AtLogprobs& at_logprobs);

  // Forgets a pass that another part of the step has ended; waits for no rank.
  void abandon();
  // Completes messages of abandoned passes. Every rank calls it.
  void settle();
  // The value that the ranks of the model's last chunk have, on all ranks; the others pass zeros.
  at::Tensor from_last(const at::Tensor& value, std::string_view label);
  bool holds_last() const;  // whether this rank holds the model's last chunk
  // The names of boundaries between stages that no chunk of this rank begins or ends at.
  std::vector<std::string> boundaries_elsewhere() const;
  // The tokens of each microbatch of the last pass.
  const std::vector<HeldTokens>& held() const { return held_; }

 private:
  // A microbatch in a chunk between its forward and its backward.
  struct Running {
    at::Tensor input = {};   // the leaf of a chunk that is not the first
    at::Tensor output = {};  // the stream, or the scalar of AtLogprobs
  };
  void run_actions(const std::vector<Microbatch>& microbatches, const Options& options,
                   const AtLogprobs& at_logprobs);
  void forward(const Action& action, const Microbatch& micro, const Options& options,
               const AtLogprobs& at_logprobs);
  void backward(const Action& action, const Options& options);
  at::Tensor further_ids(const Microbatch& micro, const ContextCut& cut) const;
  std::vector<at::Tensor> all_logprobs(const at::Tensor& logits, const Microbatch& micro,
                                       const ContextCut& cut, const StepContext& context,
                                       double temperature);
  at::Tensor logprobs_of(const at::Tensor& logits, const Microbatch& micro, const ContextCut& cut,
                         double temperature);
  at::Tensor logprobs_ahead(const at::Tensor& logits, int64_t depth, const at::Tensor& ids,
                            const Microbatch& micro, const ContextCut& cut, double temperature);
  bool is_first(int64_t chunk) const;
  bool is_last(int64_t chunk) const;
  bool has_backward(int64_t chunk) const;

  RankSetup setup_;
  Decoder& model_;
  ParallelStyles styles_;
  ParameterStore& store_;
  TokenCuts tokens_;
  std::unique_ptr<StageLink> link_;                         // null: this rank holds the whole model
  std::map<std::pair<int64_t, int64_t>, Running> running_;  // by chunk and microbatch
  ActionWatch watch_;
  TokenWatch token_watch_;
  bool splits_ = false;       // the pass has kWeights
  OpenWeights open_weights_;  // left by split backwards
  std::vector<HeldTokens> held_;
  std::vector<ContextCut> cuts_;  // of each microbatch, which recomputed regions read again
};

}  // namespace shardproof
