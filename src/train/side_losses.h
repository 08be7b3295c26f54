// The side losses of a step's routers (model/moe/side_losses.h), whose gradients the layers that
// weigh routes add to the main one. Each rank adds the part of its own tokens; the parts of all
// ranks sum up to the loss, whatever the mesh.
//
// Sources: NVIDIA/Megatron-LM megatron/core/transformer/moe/router.py, _apply_aux_loss,
// _apply_seq_aux_loss, _apply_global_aux_loss and apply_z_loss; huggingface/transformers 5.23,
// load_balancing_loss_func. Golden: golden/side_terms.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/expert_choices.h"
#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "model/moe/side_losses.h"
#include "parallel/style/token_cuts.h"
#include "train/microbatch.h"

namespace shardproof {

class SideLosses {
 public:
  // Wraps the layers that weigh routes, after all styles have replaced theirs. `comm` must outlive
  // the model.
  SideLosses(Decoder& model, const SideLossOptions& options, const TokenCuts& cuts, MeshComm& comm,
             at::Device device);

  // From here to end() forwards add the losses, with `factor` times their coefficients.
  //
  //   forward of a layer   all_reduce(sum) of its counts of routes over the ranks that share the
  //                        sequences; in groups kGlobal another one over those of other samples
  void begin(const std::vector<Microbatch>& microbatches, const Batch& batch, double factor);
  void end() { active_ = false; }
  // The losses of the step, without their coefficients, equal on all ranks: "aux_loss.<layer>", or
  // "aux_loss" in the pooled form, and "z_loss.<layer>".
  //
  //   all_reduce(sum) over all ranks
  std::map<std::string, double> take_values();

  // What the layer with number `layer` adds to the weights of its routes.
  at::Tensor attach(int64_t layer, const at::Tensor& logits, const at::Tensor& weights,
                    const StepContext& context);

 private:
  // Of a layer and a microbatch. Counts and tokens are those of whole groups, scores those of this
  // rank's tokens, without gradient.
  struct Part {
    BalancingSums sums;
    at::Tensor all_counts;   // kGlobal: [N], of this microbatch on all ranks
    int64_t all_tokens = 0;  // kGlobal
    at::Tensor gradient;     // kPooled: of the scores, to be filled when all layers have run
    double balance = 0, z = 0;
  };
  at::Tensor groups_of(const at::Tensor& own_tokens) const;
  at::Tensor balancing(const Part& part, const BalancingSums& own, int64_t layer,
                       int64_t microbatch) const;
  void fill_pooled_gradients(int64_t microbatch);

  SideLossOptions options_;
  RouterRule rule_;
  std::vector<int64_t> layers_;  // with experts
  TokenCuts cuts_;
  MeshComm& comm_;
  at::Device device_;
  std::vector<std::string> sequence_axes_;  // whose ranks hold parts of the same sequences
  bool active_ = false;
  int64_t seq_len_ = 0, samples_ = 0;  // of the batch
  double group_count_ = 0, factor_ = 0;
  std::map<std::pair<int64_t, int64_t>, Part> parts_;  // by microbatch and layer
};

}  // namespace shardproof
