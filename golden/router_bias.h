// The selection biases of the routers of one device, moved after each step by the routes of its
// real tokens.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/batch.h"
#include "model/decoder.h"
#include "sim/case/case_spec.h"

namespace shardproof::golden {

class RouterBiases {
 public:
  // Wraps the selections of `model`, where the case moves biases.
  RouterBiases(const sim::CaseSpec& spec, Decoder& model);
  // After a step whose last forward was that of `batch`: changes those masters that are biases.
  // Returns by how much each moved, by its name.
  std::map<std::string, at::Tensor> update(const Batch& batch,
                                           const std::vector<ParameterPtr>& parameters,
                                           const std::vector<at::Tensor>& masters) const;

 private:
  // [B, S, K] of each layer with the bias, by its name.
  using RoutesOfBiases = std::map<std::string, std::map<int64_t, at::Tensor>>;

  BiasRule rule_;
  std::shared_ptr<RoutesOfBiases> ids_;
};

}  // namespace shardproof::golden
