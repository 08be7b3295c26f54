// The side losses of a step on one device: each group of tokens by its definition
// (dense_side_losses.h), added to the main loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

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

 private:
  const sim::CaseSpec& spec_;
  SideLossOptions options_;
  RouterRule rule_;
  std::shared_ptr<std::map<int64_t, at::Tensor>> logits_;  // [B, S, N] of each layer
};

}  // namespace shardproof::golden
