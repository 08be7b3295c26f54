// The plain router and experts of one device, in place of a layer's MLP, by the rules of
// src/model/moe. Logits and weights of routes are in the wider type, whatever the stream's dtype.
//
// Sources: huggingface/transformers 5.23, MixtralSparseMoeBlock, Qwen2MoeSparseMoeBlock,
// Qwen3MoeSparseMoeBlock and GptOssExperts.
#pragma once

#include "model/decoder.h"
#include "model/moe/expert_rows.h"
#include "model/moe/router_rule.h"

namespace shardproof {

class Router : public Layer {  // weight [N, E], bias [N] or null
 public:
  explicit Router(ParameterPtr weight, ParameterPtr bias = nullptr)
      : weight(std::move(weight)), bias(std::move(bias)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override;
  ParameterPtr weight, bias;
};

// Tokens whose entry in the context's token_map is -1 are padding, which has no route. The bias
// [N], if there is one, is not trained.
class ExpertSelection : public Layer {
 public:
  explicit ExpertSelection(const RouterRule& rule, ParameterPtr bias = nullptr)
      : rule(rule), bias(std::move(bias)) {}
  std::vector<ParameterPtr> parameters() const override;
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  RouterRule rule;
  ParameterPtr bias;
};

class RouteWeights : public Layer {
 public:
  explicit RouteWeights(const RouterRule& rule) : rule(rule) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  RouterRule rule;
};

// routed and shared [B, S, E], gate [B, S, 1] -> routed + sigmoid(gate) * shared; without a gate
// their sum.
class SharedSum : public Layer {
 public:
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
};

// Some experts, or parts of their width, with the shapes of ExpertForm; without biases undefined.
struct ExpertTensors {
  at::Tensor gate_up, down;
  ExpertForm form;
  at::Tensor gate_up_bias = {}, down_bias = {};
  int64_t rows_multiple = 1;  // each expert computes a multiple of so many rows
};

// x [n, E] with `rows.counts` rows of each expert, in their order -> [n, E].
at::Tensor run_experts(const at::Tensor& x, const ExpertRows& rows, const ExpertTensors& experts,
                       const StepContext& context);

// Parameters as in run_experts; the biases are null where the form has none.
class Experts : public Layer {
 public:
  Experts(ParameterPtr gate_up, ParameterPtr down, const ExpertForm& form,
          ParameterPtr gate_up_bias = nullptr, ParameterPtr down_bias = nullptr)
      : gate_up(std::move(gate_up)),
        down(std::move(down)),
        gate_up_bias(std::move(gate_up_bias)),
        down_bias(std::move(down_bias)),
        form(form) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override;
  ExpertTensors tensors() const;
  ParameterPtr gate_up, down, gate_up_bias, down_bias;
  ExpertForm form;
  int64_t rows_multiple = 1;  // a style sets it
};

}  // namespace shardproof
