// The plain router and experts of one device, in place of a layer's MLP. The router's logits are in
// the wider type, whatever the dtype of the stream; from them the experts choose, weigh, compute
// and sum (src/model/moe).
//
// Sources: huggingface/transformers 5.23, MixtralSparseMoeBlock and Qwen3MoeSparseMoeBlock.
#pragma once

#include "model/decoder.h"
#include "model/moe/router_rule.h"

namespace shardproof {

class Router : public Layer {  // weight [N, E]
 public:
  explicit Router(ParameterPtr weight) : weight(std::move(weight)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override { return {weight}; }
  ParameterPtr weight;
};

// gate_up [N, 2F, E], the rows of the gate first; down [N, E, F]. Tokens whose entry in the
// context's token_map is -1 are padding: no expert computes them, and their sum is 0.
class Experts : public Layer {
 public:
  Experts(ParameterPtr gate_up, ParameterPtr down, const RouterRule& rule, Activation activation)
      : gate_up(std::move(gate_up)), down(std::move(down)), rule(rule), activation(activation) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override { return {gate_up, down}; }
  ParameterPtr gate_up, down;
  RouterRule rule;
  Activation activation;
};

}  // namespace shardproof
