#include "parallel/tp/async_linear.h"

#include <ATen/ATen.h>

#include <optional>

#include "base/error.h"
#include "collective/mappings.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

// The part of a call that its backward needs besides tensors; the graph owns it.
struct LinearCall : torch::CustomClassHolder {
  LinearCall(Communicator& tp_in, const AsyncLinearOptions& options_in)
      : tp(tp_in), options(options_in) {}
  bool gathers() const { return options.sequence_parallel && tp->size() > 1; }
  bool reduces() const { return options.reduce_input_gradient && tp->size() > 1; }
  CommunicatorHandle tp;
  AsyncLinearOptions options;
};

c10::intrusive_ptr<LinearCall> call_of(FunctionContext* ctx) {
  return c10::static_intrusive_pointer_cast<LinearCall>(ctx->saved_data["call"].toCapsule());
}

// The sum of `grad` over all leading dims; undefined without a bias that needs a gradient.
at::Tensor bias_gradient(FunctionContext* ctx, const at::Tensor& grad) {
  if (!ctx->saved_data["bias"].toBool() || !ctx->needs_input_grad(2)) return {};
  return grad.flatten(0, -2).sum(0);
}

std::optional<at::Tensor> if_defined(const at::Tensor& bias) {
  return bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
}

// grad_x and its reduction over tp: steps 2, 3 and 6 of async_linear.h.
class InputGradient {
 public:
  InputGradient(const LinearCall& call, const at::Tensor& grad, const at::Tensor& weight) {
    grad_ = grad.matmul(weight);
    const std::string label = call.options.label + " backward";
    if (call.gathers()) {
      pending_ =
          call.tp->reduce_scatter_async(grad_, call.options.sequence_dim, ReduceOp::kSum, label);
    } else if (call.reduces()) {
      pending_ = call.tp->all_reduce_async(grad_, ReduceOp::kSum, label);
    }
  }
  at::Tensor wait() { return pending_ ? pending_->wait() : grad_; }

 private:
  at::Tensor grad_;
  std::optional<PendingCollective> pending_;
};

at::Tensor weight_gradient(const LinearCall& call, const at::Tensor& grad, const at::Tensor& input,
                           const at::Tensor& weight) {
  if (!call.options.main_gradient) {
    return grad.flatten(0, -2).t().matmul(input.flatten(0, -2));  // a rank may have no columns
  }
  add_weight_gradient(call.options.main_gradient->sum, grad, input);
  return stand_in(weight, *call.options.main_gradient);
}

// Makes the all_gather of step 1 later.
std::function<at::Tensor(const at::Tensor&)> regather_of(
    const c10::intrusive_ptr<LinearCall>& call) {
  return [call](const at::Tensor& x) {
    return all_gather_in(call->options.gather_buffer, x, *call->tp, call->options.sequence_dim,
                         call->options.label + " regather");
  };
}

struct AsyncLinearFunction : Function<AsyncLinearFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            const c10::intrusive_ptr<LinearCall>& call) {
    // Without a gradient of the weight nothing needs x again.
    ctx->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight});
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->saved_data["bias"] = bias.has_value();
    const at::Tensor input = call->gathers() ? all_gather_in(call->options.gather_buffer, x,
                                                             *call->tp, call->options.sequence_dim,
                                                             call->options.label + " forward")
                                             : x;
    return at::linear(input, weight, bias);
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "an async linear has no second derivative");
    const auto call = call_of(ctx);
    const std::vector<at::Tensor> saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &grad = grads[0];
    const auto& deferred = call->options.deferred;
    const bool trains = ctx->needs_input_grad(1);
    const bool leaves = trains && call->options.leave;
    const bool defers = trains && !leaves && deferred && deferred->has_room();
    const bool multiplies = trains && !leaves && !defers;

    std::optional<PendingCollective> regather;
    if (multiplies && call->gathers()) {
      regather = all_gather_async_in(call->options.gather_buffer, x, *call->tp,
                                     call->options.sequence_dim, call->options.label + " regather");
    }
    std::optional<InputGradient> grad_x;
    if (ctx->needs_input_grad(0)) grad_x.emplace(*call, grad, weight);
    at::Tensor grad_weight;
    if (leaves) {
      call->options.leave(x, grad, call->gathers() ? regather_of(call) : nullptr);
    } else if (defers) {
      deferred->add({x, grad, call->gathers() ? call->options.sequence_dim : -1});
    } else if (multiplies) {
      grad_weight = weight_gradient(*call, grad, regather ? regather->wait() : x, weight);
    }
    const at::Tensor grad_bias = bias_gradient(ctx, grad);
    return {grad_x ? grad_x->wait() : at::Tensor(), grad_weight, grad_bias, at::Tensor()};
  }
};

void check_options(const AsyncLinearOptions& options) {
  if (options.reduce_input_gradient && options.sequence_parallel) {
    throw_refused(
        "'" + options.label +
            "' sets reduce_input_gradient and sequence_parallel, which reduce the gradient of "
            "its input by all_reduce and by reduce_scatter",
        "set one of them");
  }
}

}  // namespace

at::Tensor async_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        Communicator& tp, const AsyncLinearOptions& options) {
  check_options(options);
  return AsyncLinearFunction::apply(x, weight, if_defined(bias),
                                    c10::make_intrusive<LinearCall>(tp, options));
}

at::Tensor frozen_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         Communicator& tp, const AsyncLinearOptions& options) {
  check_options(options);
  if (options.deferred) {
    throw_refused("'" + options.label + "' has a frozen weight and defers its weight gradient",
                  "defer nothing where no gradient is computed");
  }
  AsyncLinearOptions own = options;
  own.sequence_parallel = false;  // the gather has its own backward
  const at::Tensor input = options.sequence_parallel ? all_gather_with_reduce_scatter_backward(
                                                           x, tp, options.sequence_dim,
                                                           options.label, {}, options.gather_buffer)
                                                     : x;
  return AsyncLinearFunction::apply(input, weight.detach(), if_defined(bias),
                                    c10::make_intrusive<LinearCall>(tp, own));
}

}  // namespace shardproof
