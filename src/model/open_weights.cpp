#include "model/open_weights.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

struct Leave : torch::CustomClassHolder {
  explicit Leave(LeaveProduct leave_in) : leave(std::move(leave_in)) {}
  LeaveProduct leave;
};

// Returns y, whose backward leaves the product. The weight is an input so that y takes a gradient
// where x takes none.
struct LeavingProduct : Function<LeavingProduct> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& y, const at::Tensor& x,
                            const at::Tensor& /*weight*/, const c10::intrusive_ptr<Leave>& leave) {
    ctx->save_for_backward({x});
    ctx->saved_data["leave"] = c10::IValue::make_capsule(leave);
    return at::alias(y);
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "a split backward has no second derivative");
    const auto leave =
        c10::static_intrusive_pointer_cast<Leave>(ctx->saved_data["leave"].toCapsule());
    leave->leave(ctx->get_saved_variables()[0], grads[0], {});
    return {grads[0], at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor input_of(const OpenWeights::Product& product) {
  return product.whole_input ? product.whole_input(product.input) : product.input;
}

}  // namespace

void OpenWeights::add(int64_t chunk, int64_t microbatch, Product product) {
  products_[{chunk, microbatch}].push_back(std::move(product));
}

void OpenWeights::finish(int64_t chunk, int64_t microbatch) {
  const at::NoGradGuard no_grad;
  auto left = products_.extract({chunk, microbatch});
  if (left.empty()) return;  // nothing is trained here but vectors
  std::map<ParameterPtr, at::Tensor> sums;
  for (Product& each : left.mapped()) {
    const Product product = std::move(each);  // its end frees what it holds
    if (const auto& main = product.weight->main_gradient) {
      add_weight_gradient(main->sum, product.grad_output, input_of(product));
      continue;
    }
    at::Tensor& sum = sums[product.weight];
    const at::Tensor gradient =
        product.grad_output.flatten(0, -2).t().mm(input_of(product).flatten(0, -2));
    sum = sum.defined() ? sum + gradient : gradient;
  }
  for (const auto& [weight, sum] : sums) {
    at::Tensor& grad = weight->tensor.mutable_grad();
    if (grad.defined()) {
      grad.add_(sum);
    } else {
      grad = sum;
    }
  }
}

LeaveProduct leave_product(const ParameterPtr& weight, const StepContext& context) {
  OpenWeights* open = context.open_weights;
  if (open == nullptr || !weight->trainable) return {};
  return [open, weight, chunk = context.chunk, microbatch = context.microbatch](
             const at::Tensor& input, const at::Tensor& grad_output,
             std::function<at::Tensor(const at::Tensor&)> whole_input) {
    open->add(chunk, microbatch, {weight, input, grad_output, std::move(whole_input)});
  };
}

at::Tensor apply_linear(const at::Tensor& x, const ParameterPtr& weight, const at::Tensor& bias,
                        const StepContext& context) {
  const at::Tensor& matrix = weight->tensor;
  const bool trains = matrix.requires_grad() && at::GradMode::is_enabled();
  if (const LeaveProduct leave = leave_product(weight, context); leave && trains) {
    const at::Tensor y = at::linear(x, matrix.detach(), bias);
    return LeavingProduct::apply(y, x.detach(), matrix, c10::make_intrusive<Leave>(leave));
  }
  if (weight->main_gradient && trains) {
    return accumulating_linear(x, matrix, bias, weight->main_gradient);
  }
  return at::linear(x, matrix, bias);
}

}  // namespace shardproof
