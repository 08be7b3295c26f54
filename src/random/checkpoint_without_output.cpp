#include "random/checkpoint_without_output.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <map>
#include <set>

#include "base/error.h"
#include "random/recompute.h"
#include "tensor/function.h"
#include "tensor/memory.h"

namespace shardproof {

// No member may refer to the autograd node that holds this.
struct CheckpointWithoutOutput::State {
  CheckpointBody body;
  RngTracker* rng = nullptr;
  RngMoment moment;
  std::vector<at::Tensor> inputs;      // leaves of the second run
  std::vector<uint32_t> versions;      // of the inputs, when the body first ran
  std::vector<at::Tensor> outputs;     // detached; their memory is freed and allocated again
  std::vector<bool> memory_is_own;     // one per output
  std::vector<at::Tensor> recomputed;  // outputs of the second run, with its graph
  const torch::autograd::Node* node = nullptr;
  bool discarded = false;
};

namespace {

using torch::autograd::Node;

// Gives the memory of `from` to a tensor whose own was freed. Both share it from then on.
void share_memory(const at::Tensor& tensor, const at::Tensor& from) {
  const c10::Storage owner = from.storage();
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::InefficientStdFunctionContext::makeDataPtr(
      owner.mutable_data(), [owner](void*) {}, tensor.device()));
  storage->set_nbytes(owner.nbytes());
}

// Whether the backward from `from` reaches `target`.
bool leads_to(const std::shared_ptr<Node>& from, const Node* target) {
  std::vector<Node*> open = {from.get()};
  std::set<Node*> seen;
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (node == target) return true;
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return false;
}

// Whether only these outputs hold the memory of output i: no input and no object of the body does.
// A view also holds its base, which is one more holder; only these views may hold the base.
bool owns_memory(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                 size_t i) {
  for (const at::Tensor& input : inputs) {
    if (input.is_alias_of(outputs[i])) return false;
  }
  size_t holders = 0;
  std::map<const at::TensorImpl*, size_t> views;  // of each base
  for (const at::Tensor& other : outputs) {
    if (!other.is_alias_of(outputs[i])) continue;
    ++holders;
    if (other.is_view()) ++views[other._base().unsafeGetTensorImpl()];
  }
  for (const at::Tensor& other : outputs) {
    if (!other.is_alias_of(outputs[i]) || !other.is_view()) continue;
    if (other._base().use_count() != views[other._base().unsafeGetTensorImpl()]) return false;
  }
  return outputs[i].storage().use_count() == holders + views.size();
}

template <class State>
std::vector<at::Tensor> first_run(State& state, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> outputs = state.body(inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    SHARDPROOF_ASSERT(outputs[i].defined(), "a body gives tensors");
    state.memory_is_own.push_back(owns_memory(outputs, inputs, i));
  }
  for (const at::Tensor& output : outputs) state.outputs.push_back(output.detach());
  return outputs;
}

template <class State>
void second_run(State& state) {
  if (!state.recomputed.empty()) return;
  refuse_grad_call();
  for (size_t i = 0; i < state.inputs.size(); ++i) {
    state.inputs[i].mutable_grad() = at::Tensor();
    SHARDPROOF_ASSERT(state.inputs[i]._version() == state.versions[i],
                      "an input of a checkpoint was written to before its recomputation");
  }
  state.recomputed = run_again(state.body, state.inputs, state.rng, state.moment);
  SHARDPROOF_ASSERT(state.recomputed.size() == state.outputs.size(),
                    "the recomputed body gave another number of outputs");
  for (size_t i = 0; state.discarded && i < state.outputs.size(); ++i) {
    if (!state.memory_is_own[i]) continue;
    const at::Tensor& then = state.outputs[i];
    const at::Tensor& now = state.recomputed[i];
    SHARDPROOF_ASSERT(then.sizes() == now.sizes() && then.strides() == now.strides() &&
                          then.storage_offset() == now.storage_offset() &&
                          then.scalar_type() == now.scalar_type(),
                      "the recomputed body gave an output of another shape");
    share_memory(then, now);
  }
}

// Makes the autograd node hold the state.
template <class State>
struct Holder : torch::CustomClassHolder {
  explicit Holder(std::shared_ptr<State> state) : state(std::move(state)) {}
  std::shared_ptr<State> state;
};

template <class State>
struct WithoutOutputFunction : Function<WithoutOutputFunction<State>> {
  static std::vector<at::Tensor> forward(FunctionContext* ctx, const std::shared_ptr<State>& state,
                                         const at::Tensor& anchor, at::TensorList inputs) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<Holder<State>>(state));
    return first_run(*state, inputs.vec());
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    const auto holder =
        c10::static_intrusive_pointer_cast<Holder<State>>(ctx->saved_data["state"].toCapsule());
    State& state = *holder->state;
    second_run(state);  // does nothing if the hook came first
    const std::vector<at::Tensor> outputs = std::move(state.recomputed);
    state.recomputed.clear();
    backward_through(outputs, grads);
    std::vector<at::Tensor> out(2);  // of the state and of the anchor
    for (const at::Tensor& leaf : state.inputs) out.push_back(leaf.grad());
    return out;
  }
};

}  // namespace

CheckpointWithoutOutput::CheckpointWithoutOutput() : state_(std::make_shared<State>()) {}
CheckpointWithoutOutput::~CheckpointWithoutOutput() = default;
CheckpointWithoutOutput::CheckpointWithoutOutput(CheckpointWithoutOutput&&) noexcept = default;
CheckpointWithoutOutput& CheckpointWithoutOutput::operator=(CheckpointWithoutOutput&&) noexcept =
    default;

std::vector<at::Tensor> CheckpointWithoutOutput::run(CheckpointBody body,
                                                     const std::vector<at::Tensor>& inputs,
                                                     RngTracker* rng) {
  SHARDPROOF_ASSERT(!state_->body, "one checkpoint object runs one body once");
  std::vector<at::Tensor> defined = inputs;
  state_->body = of_defined(std::move(body), defined);
  state_->rng = rng;
  if (!at::GradMode::is_enabled()) return first_run(*state_, defined);
  state_->moment = RngMoment::of(rng);
  state_->inputs = detached_inputs(defined);
  for (const at::Tensor& input : state_->inputs) state_->versions.push_back(input._version());
  const at::Tensor anchor = at::empty({0}).requires_grad_();
  std::vector<at::Tensor> outputs =
      WithoutOutputFunction<State>::apply(state_, anchor, at::TensorList(defined));
  if (!outputs.empty()) state_->node = outputs[0].grad_fn().get();
  return outputs;
}

int64_t CheckpointWithoutOutput::discard_outputs_until(const at::Tensor& hook) {
  SHARDPROOF_ASSERT(state_->body && !state_->discarded, "discard once, after run()");
  if (hook.requires_grad()) {
    if (!leads_to(hook.grad_fn(), state_->node)) {
      throw_bad_input(
          "the hook tensor of a checkpoint does not depend on its outputs: their "
          "memory would not be back in time",
          "give the result of the layer that reads the outputs");
    }
    hook.register_hook([state = state_](const at::Tensor&) { second_run(*state); });
  }
  state_->discarded = true;
  int64_t bytes = 0;
  for (size_t i = 0; i < state_->outputs.size(); ++i) {
    if (!state_->memory_is_own[i]) continue;
    bytes += memory_bytes(state_->outputs[i]);
    free_memory(state_->outputs[i]);
  }
  return bytes;
}

}  // namespace shardproof
