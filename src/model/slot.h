// Named slots: the model is a tree of them, and parallelism replaces their layers from outside. A
// slot observes its own calls, so no layer calls a probe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "model/main_gradient.h"
#include "model/slot_role.h"
#include "observe/probe.h"

namespace shardproof {

class OpenWeights;  // open_weights.h
class SequenceLayout;

// How the gradients that a backward leaves on the ranks become the parameter's gradient: their sum
// over some ranks, and their mean over others. The loss has the number of ranks with other tokens
// (TokenCuts::token_axes) as a factor, which a mean over all of them cancels; where the mean is
// over fewer ranks, the gradient is multiplied by their number and divided by that factor.
struct GradientRule {
  // Axes over which this rank's gradient is one addend although the ranks hold equal copies:
  // sequence-parallel norms {"tp"}; kv heads that k neighbors share {"tp%k"}.
  std::vector<std::string> sum_over = {};
  // The axis on which several coordinates hold the parameter (Cut::held_by), each with one addend:
  // a tied embedding on the first and the last stage of "pp". Only the holders take the sum.
  std::string sum_over_holders = {};
  // The axes over which the gradient's mean is taken. Unset: all axes of tokens. Fewer, where the
  // backward itself sums over the others: an expert, which gets the tokens of all ranks of "ep", on
  // the ranks of "edp" that hold it.
  std::optional<std::vector<std::string>> mean_over = {};
};

// A parameter of the model. Before Decoder::materialise it is a read-only view of the full tensor,
// which all ranks of a process share; afterwards `tensor` is this rank's own leaf.
struct Parameter {
  std::string name;        // Hugging Face name, "model.layers.0.self_attn.q_proj.weight"
  at::Tensor tensor;       // view or leaf, see above
  at::Tensor master = {};  // wider copy of a low-precision leaf (precision.h), or undefined
  std::vector<int64_t> global_shape = {};
  Layout layout = {};      // the plan sets it
  GradientRule rule = {};  // a style sets it
  bool trainable = true;
  bool in_two_chunks = false;  // of one rank, which need not be this one
  // For a weight [.., rows, columns] of a hidden layer: the rows of each matrix that it joins, one
  // for a linear, two for gate|up. Empty for embeddings, the head, norms and biases.
  std::vector<int64_t> matrix_rows = {};
  std::shared_ptr<MainGradient> main_gradient = {};  // null: gradients go to .grad
};
using ParameterPtr = std::shared_ptr<Parameter>;

// The step that a call belongs to, passed by reference; nothing is global.
struct StepContext {
  Probe& probe;
  int64_t step = 0;
  int64_t microbatch = 0;
  int64_t chunk = 0;  // which of the rank's chunks runs; Decoder::forward sets it
  Phase forward_phase = Phase::kForward;
  at::Tensor token_map = {};  // [b, s], see Observation
  at::Tensor positions = {};  // [b, s] int64 RoPE positions of the tokens that attention sees
  // [D, b, s] int64, cut as the ids of the tokens: for extra head k = 1 .. D the id k tokens behind
  // each token of its sequence, 0 where the sequence has ended. Undefined: extra heads do not run.
  at::Tensor further_ids = {};
  double grad_scale = 1.0;  // declared factor of activation gradients relative to the golden
  // [s] int64: the sequence of a packed row that each token belongs to, over the tokens that one
  // device's attention sees. Attention stays within a sequence. Undefined: each sample is one
  // sequence.
  at::Tensor sequence_ids = {};
  // The sequences of the tokens and the ranks that hold them, for attention spread over ranks; null
  // otherwise.
  const SequenceLayout* sequence_layout = nullptr;
  // Where a split backward leaves the gradients of linears' matrices; null: it computes them.
  OpenWeights* open_weights = nullptr;
};

// The layer in a slot. It has one output; the slot's kind (slot_role.h) defines its inputs.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual at::Tensor forward(at::TensorList inputs, const StepContext& context) = 0;
  virtual std::vector<ParameterPtr> parameters() const { return {}; }
  // For a layer whose backward leaves gradients of its parameters for later: computes them, after
  // the last backward of an optimizer step, or drops them, when a step is abandoned.
  virtual void finish_backward() {}
  virtual void drop_backward() {}
};

struct Slot {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  SlotRole role;
  std::unique_ptr<Layer> layer;
  // One per input; the last one also applies to all further inputs.
  std::vector<Layout> input_layouts = {};
  // For each input, the axes over which this rank's gradient of it is one addend, placed by its
  // layout (fewer kv heads than tp: ranks share a head). Empty: no input has such axes.
  std::vector<std::vector<std::string>> input_partial_axes = {};
  Layout output_layout = {};

  SlotKind kind() const { return kind_of(role); }
  // The names under which it is observed.
  std::vector<std::string> observed_names() const;
  // Runs the layer; records the output and, when gradients flow, the gradient of each input.
  at::Tensor operator()(at::TensorList inputs, const StepContext& context);
};

}  // namespace shardproof
