// A decoder-only transformer for ONE device, as a tree of named slots. No parallel code: a plan
// replaces what the slots hold. Shapes below are those of one device; head counts and widths inside
// forward are read from the local tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/precision.h"
#include "model/slot.h"
#include "model/weights.h"

namespace shardproof {

class Decoder {
 public:
  // Slots with plain layers over read-only full weights. Dtype and device come with materialise().
  // Throws Error(kBadInput) when a weight is missing or has another shape than the config says.
  Decoder(const ModelConfig& config, std::shared_ptr<const WeightMap> weights);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  const ModelConfig& config() const { return config_; }
  // In forward order: model.embed_tokens, model.layers.<i>.{input_layernorm,
  // self_attn.{q,k,v}_proj, self_attn.attention, self_attn.o_proj, attention_residual,
  // post_attention_layernorm, mlp.{gate,up}_proj, mlp.activation, mlp.down_proj, mlp_residual},
  // model.norm, lm_head.
  std::vector<Slot*> slots();
  Slot& slot(const std::string& name);
  // Every parameter once (a tied one once), in forward order.
  std::vector<ParameterPtr> parameters() const;

  // Gives this rank its own leaves (once): each parameter's cut by its layout, cast as precision.h
  // says and moved. Parameters that are not trainable take no gradient.
  void materialise(const Mesh& mesh, int64_t rank, at::ScalarType dtype, at::Device device);

  // input_ids [b, s] int64, context.positions [b, s] -> logits [b, s, V] (or what the plan left:
  // [b, s, V_tp]).
  at::Tensor forward(const at::Tensor& input_ids, const StepContext& context);

 private:
  struct Block;
  Slot* add(std::string name, SlotKind kind, std::unique_ptr<Layer> layer);
  ParameterPtr parameter(const std::string& name) const;
  std::unique_ptr<Layer> linear(const std::string& name, bool bias) const;
  Block make_block(int64_t index);
  at::Tensor run_block(const Block& block, const at::Tensor& x, const StepContext& context,
                       const at::Tensor& rotary) const;

  ModelConfig config_;
  std::shared_ptr<const WeightMap> weights_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::map<std::string, Slot*> by_name_;
  Slot* embed_tokens_ = nullptr;
  std::vector<Block> blocks_;
  Slot* norm_ = nullptr;
  Slot* lm_head_ = nullptr;
  bool materialised_ = false;
  at::Tensor inverse_frequencies_;  // [head_dim / 2], in the wider type
};

// The plain layers, which the plans' layers take their parameters from.
class Linear : public Layer {  // weight [out, in], bias [out] or null
 public:
  Linear(ParameterPtr weight, ParameterPtr bias)
      : weight(std::move(weight)), bias(std::move(bias)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override;
  ParameterPtr weight, bias;
};

class Embedding : public Layer {  // weight [V, E]; the row of pad_token_id (>= 0) gets no gradient
 public:
  Embedding(ParameterPtr weight, int64_t pad_token_id)
      : weight(std::move(weight)), pad_token_id(pad_token_id) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override { return {weight}; }
  ParameterPtr weight;
  int64_t pad_token_id;
};

class RmsNorm : public Layer {  // weight [E]; computed in the wider type
 public:
  RmsNorm(ParameterPtr weight, double eps) : weight(std::move(weight)), eps(eps) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override { return {weight}; }
  ParameterPtr weight;
  double eps;
};

class CausalAttention : public Layer {  // q [B,S,H,D], k, v [B,S,H_kv,D] -> [B,S,H*D]
 public:
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
};

class Residual : public Layer {  // x, y -> x + y
 public:
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
};

class SiluGate : public Layer {  // gate, up [B, S, F] -> silu(gate) * up
 public:
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
};

}  // namespace shardproof
