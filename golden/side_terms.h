// The side losses of a step on one device: each group of tokens by its definition
// (dense_side_losses.h), added to the main loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/batch.h"
#include "model/decoder.h"
#include "sim/case/case_spec.h"

namespace shardproof::golden {

class SideTerms {
 public:
  // Keeps the logits of every router of `model` from its last forward. Values stay as they are.
  SideTerms(const sim::CaseSpec& spec, Decoder& model);

  struct Terms {
    at::Tensor sum;                        // with coefficients, differentiable
    std::map<std::string, double> values;  // without: "aux_loss.0", "z_loss.0"
  };
  // Of the forward of `batch`.
  Terms of(const Batch& batch) const;

  // What one kind of side loss adds to the gradient of a router's logits; or what makes any
  // balancing loss's: the scores whose means it has, and how they grow with the logits.
  struct Part {
    // "model.layers.0.mlp.gate.weights.grad_input.balance", or ".z", ".scores", ".slopes"
    std::string name;
    at::Tensor gradient;
  };
  std::vector<Part> parts(const Batch& batch) const;

 private:
  using Logits = std::map<int64_t, at::Tensor>;
  struct Sums {
    at::Tensor balance, z;  // with coefficients; undefined: there is none
    std::map<std::string, double> values;
  };
  void add_scores(const std::string& slot, const at::Tensor& logits,
                  std::vector<Part>& parts) const;
  Sums sums_of(const Batch& batch, const Logits& logits) const;

  const sim::CaseSpec& spec_;
  SideLossOptions options_;
  RouterRule rule_;
  std::map<int64_t, std::string> slots_;  // that take the logits, by layer
  std::shared_ptr<Logits> logits_;        // [B, S, N] of each layer
};

}  // namespace shardproof::golden
