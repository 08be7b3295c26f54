// Named slots: the model is a tree of them, and parallelism is applied from outside by replacing
// what a slot holds. A slot watches its own calls, so no layer calls a probe by hand.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "model/main_gradient.h"
#include "observe/probe.h"

namespace shardproof {

class SequenceLayout;

// A parameter of the model. Until Decoder::materialise it is a read-only view of the full tensor,
// shared by all ranks of a process; afterwards `tensor` is this rank's own leaf.
struct Parameter {
  std::string name;        // Hugging Face name, "model.layers.0.self_attn.q_proj.weight"
  at::Tensor tensor;       // see above
  at::Tensor master = {};  // wider copy of a low-precision leaf (precision.h), or undefined
  std::vector<int64_t> global_shape = {};
  Layout layout = {};  // the plan sets it
  // Axes over which this rank's raw gradient is one addend of the true one although the ranks hold
  // equal copies (sequence-parallel norms: {"tp"}). Whoever finishes the backward sums over them.
  std::vector<std::string> partial_grad_axes = {};
  // The same within the ranks that share one part of a kRepeated cut (kv heads fewer than tp).
  bool sum_grad_over_repeats = false;
  bool trainable = true;
  std::shared_ptr<MainGradient> main_gradient = {};  // null: gradients go to .grad
};
using ParameterPtr = std::shared_ptr<Parameter>;

// What a call needs to know of the step it belongs to. Passed down by reference; nothing is global.
struct StepContext {
  Probe& probe;
  int64_t step = 0;
  int64_t microbatch = 0;
  Phase forward_phase = Phase::kForward;
  at::Tensor token_map = {};  // [b, s], see Observation
  at::Tensor positions = {};  // [b, s] int64 RoPE positions of the tokens that attention sees
  double grad_scale = 1.0;    // declared factor of activation gradients against the golden
  // [s] int64, of the tokens that one device's attention sees: which sequence of a packed row each
  // belongs to; attention stays within a sequence. Undefined: each sample is one sequence.
  at::Tensor sequence_ids = {};
  // Which sequences the tokens belong to and who holds them, for attention that is spread over
  // ranks. Null: attention is not spread.
  const SequenceLayout* sequence_layout = nullptr;
};

// What stands in a slot. One output; inputs as the slot's kind says.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual at::Tensor forward(at::TensorList inputs, const StepContext& context) = 0;
  virtual std::vector<ParameterPtr> parameters() const { return {}; }
};

enum class SlotKind {
  kLinear,      // x [.., in] -> [.., out]
  kEmbedding,   // ids [B, S] -> [B, S, E]
  kNorm,        // x [B, S, E] -> [B, S, E]; of heads x [B, S, H, D] -> [B, S, H, D]
  kAttention,   // q [B, S, H, D], k, v [B, S, H_kv, D] -> [B, S, H*D]
  kResidual,    // x, y -> x + y
  kLmHead,      // x [B, S, E] -> logits [B, S, V]
  kActivation,  // gate, up [B, S, F] -> silu(gate) * up, or gelu
};

struct Slot {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  SlotKind kind;
  std::unique_ptr<Layer> layer;
  // Of each input; the last one counts for all further ones.
  std::vector<Layout> input_layouts = {};
  // Of each input: axes over which this rank's gradient of it is one addend, each piece placed by
  // its layout (kv heads fewer than tp: ranks that share a head). Empty: none of them.
  std::vector<std::vector<std::string>> input_partial_axes = {};
  Layout output_layout = {};

  // Runs the layer; records the output and, when gradients flow, the gradient of each input.
  at::Tensor operator()(at::TensorList inputs, const StepContext& context);
};

}  // namespace shardproof
