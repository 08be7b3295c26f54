// The selection biases of the routers of one device: zero before the first step, and moved after
// each step by the routes of its real tokens.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "model/batch.h"
#include "model/decoder.h"
#include "sim/case/case_spec.h"

namespace shardproof::golden {

class RouterBiases {
 public:
  // Replaces the selections of `model`, where the case has biases.
  RouterBiases(const sim::CaseSpec& spec, Decoder& model);
  // After a step whose last forward was that of `batch`.
  void update(const Batch& batch);
  const std::map<int64_t, std::vector<double>>& by_layer() const { return biases_->of_layers; }

 private:
  struct State {
    RouterRule router;
    std::map<int64_t, std::vector<double>> of_layers;
    std::map<int64_t, at::Tensor> ids;  // [B, S, K] of the last forward
  };
  class Biased;
  BiasRule rule_;
  std::shared_ptr<State> biases_;
};

}  // namespace shardproof::golden
