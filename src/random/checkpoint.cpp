#include "random/checkpoint.h"

#include <ATen/ATen.h>

#include "random/recompute.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

// The data for the backward besides tensors.
struct CheckpointRun : torch::CustomClassHolder {
  CheckpointBody body;
  RngTracker* rng = nullptr;
  RngMoment moment;
  KeptActivation* first_input = nullptr;
  std::vector<int64_t> first_shape;
  std::vector<bool> takes_gradient;  // one per input
};

struct CheckpointFunction : Function<CheckpointFunction> {
  // `anchor` takes a gradient, so that the body's parameters always get theirs.
  static std::vector<at::Tensor> forward(FunctionContext* ctx,
                                         const c10::intrusive_ptr<CheckpointRun>& run,
                                         const at::Tensor& anchor, at::TensorList inputs) {
    run->moment = RngMoment::of(run->rng);
    std::vector<at::Tensor> outputs = run->body(inputs.vec());
    std::vector<at::Tensor> kept = inputs.vec();
    if (run->first_input != nullptr) {
      run->first_shape = kept[0].sizes().vec();
      kept[0] = run->first_input->keep(kept[0].detach());
    }
    ctx->save_for_backward(std::move(kept));
    ctx->set_materialize_grads(false);
    ctx->saved_data["run"] = c10::IValue::make_capsule(run);
    return outputs;
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    refuse_grad_call();
    const auto run =
        c10::static_intrusive_pointer_cast<CheckpointRun>(ctx->saved_data["run"].toCapsule());
    std::vector<at::Tensor> inputs = ctx->get_saved_variables();
    if (run->first_input != nullptr) {
      inputs[0] = run->first_input->restore(inputs[0], run->first_shape);
    }
    std::vector<at::Tensor> leaves;
    for (size_t i = 0; i < inputs.size(); ++i) {
      leaves.push_back(inputs[i].detach());
      if (run->takes_gradient[i]) leaves[i].requires_grad_();
    }
    inputs.clear();
    backward_through(run_again(run->body, leaves, run->rng, run->moment), grads);
    std::vector<at::Tensor> out(2);  // of the run and of the anchor
    for (const at::Tensor& leaf : leaves) out.push_back(leaf.grad());
    return out;
  }
};

}  // namespace

std::vector<at::Tensor> checkpoint(CheckpointBody body, const std::vector<at::Tensor>& inputs,
                                   RngTracker* rng, const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return body(inputs);
  const auto run = c10::make_intrusive<CheckpointRun>();
  const bool keeps_first = !inputs.empty() && inputs[0].defined();
  std::vector<at::Tensor> defined = inputs;
  run->body = of_defined(std::move(body), defined);
  run->rng = rng;
  run->first_input = keeps_first ? options.first_input : nullptr;
  for (const at::Tensor& input : defined) run->takes_gradient.push_back(input.requires_grad());
  const at::Tensor anchor = at::empty({0}).requires_grad_();
  return CheckpointFunction::apply(run, anchor, at::TensorList(defined));
}

}  // namespace shardproof
