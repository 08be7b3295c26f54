// The plain router and experts of one device, in place of a layer's MLP, by the rules of
// src/model/moe. Logits and weights of routes are in the wider type, whatever the stream's dtype.
//
// Sources: huggingface/transformers 5.23, MixtralSparseMoeBlock and Qwen3MoeSparseMoeBlock.
#pragma once

#include "model/decoder.h"
#include "model/moe/expert_rows.h"
#include "model/moe/router_rule.h"

namespace shardproof {

class Router : public Layer {  // weight [N, E]
 public:
  explicit Router(ParameterPtr weight) : weight(std::move(weight)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override { return {weight}; }
  ParameterPtr weight;
};

// Tokens whose entry in the context's token_map is -1 are padding, which has no route.
class ExpertSelection : public Layer {
 public:
  explicit ExpertSelection(const RouterRule& rule) : rule(rule) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  RouterRule rule;
};

class RouteWeights : public Layer {
 public:
  explicit RouteWeights(const RouterRule& rule) : rule(rule) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  RouterRule rule;
};

// x [n, E] with `rows.counts` rows of each expert, in their order -> [n, E]. gate_up [N, 2F, E],
// the rows of the gate first; down [N, E, F]. N and F may be those of some experts and of parts of
// them.
at::Tensor run_experts(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& gate_up,
                       const at::Tensor& down, Activation activation, const StepContext& context);

// Parameters as in run_experts.
class Experts : public Layer {
 public:
  Experts(ParameterPtr gate_up, ParameterPtr down, Activation activation)
      : gate_up(std::move(gate_up)), down(std::move(down)), activation(activation) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override { return {gate_up, down}; }
  ParameterPtr gate_up, down;
  Activation activation;
};

}  // namespace shardproof
