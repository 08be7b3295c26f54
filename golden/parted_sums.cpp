// Legend: I inputs and O outputs of a linear.
#include "golden/parted_sums.h"

#include <ATen/ATen.h>

#include <limits>
#include <memory>

#include "model/wrapped_layer.h"

namespace shardproof::golden {
namespace {

// The sum over k of terms [.., k] and factors [k, n], as it is given: infinite where a part is.
at::Tensor overflowed(const at::Tensor& sum, const at::Tensor& terms, const at::Tensor& factors,
                      int64_t parts) {
  const at::Tensor x = terms.detach().to(at::kDouble), w = factors.detach().to(at::kDouble);
  const double most = x.abs().sum(-1).max().item<double>() * w.abs().max().item<double>();
  if (!(most > kLargestHalf)) return sum;
  const std::vector<at::Tensor> of_x = x.chunk(parts, -1), of_w = w.chunk(parts, 0);
  at::Tensor over = at::zeros(sum.sizes(), at::kBool);
  for (size_t i = 0; i < of_x.size(); ++i) {
    over.logical_or_(of_x[i].matmul(of_w[i]).abs().gt(kLargestHalf));
  }
  return sum.masked_fill(over, std::numeric_limits<double>::infinity());
}

at::Tensor forward_in_parts(Layer& layer, const at::Tensor& x, const at::Tensor& weight,
                            const StepContext& context, int64_t parts) {
  return overflowed(layer.forward({x}, context), x, weight.t(), parts);
}

at::Tensor with_backward_in_parts(Layer& layer, const at::Tensor& x, const at::Tensor& weight,
                                  const StepContext& context, int64_t parts) {
  if (!x.requires_grad() || !at::GradMode::is_enabled()) return layer.forward({x}, context);
  const at::Tensor input = x.view_as(x);
  const at::Tensor out = layer.forward({input}, context);
  const auto arrived = std::make_shared<at::Tensor>();
  out.register_hook([arrived](const at::Tensor& gradient) { *arrived = gradient; });
  input.register_hook([arrived, weight, parts](const at::Tensor& gradient) {
    return arrived->defined() ? overflowed(gradient, *arrived, weight, parts) : gradient;
  });
  return out;
}

}  // namespace

void overflow_in_parts(Decoder& model, int64_t parts) {
  for (Slot* slot : model.slots()) {
    if (slot->kind() != SlotKind::kLinear && slot->kind() != SlotKind::kLmHead) continue;
    const std::vector<ParameterPtr> parameters = slot->layer->parameters();
    if (parameters.empty()) continue;
    const SlotRole role = slot->role;
    const bool shares_inputs = role == SlotRole::kDown || role == SlotRole::kAttentionOut;
    wrap_layer(*slot, [parts, shares_inputs, weight = parameters[0]](
                          Layer& inner, at::TensorList inputs, const StepContext& context) {
      if (inputs[0].scalar_type() != at::kHalf) return inner.forward(inputs, context);
      const auto run = shares_inputs ? forward_in_parts : with_backward_in_parts;
      return run(inner, inputs[0], weight->tensor.detach(), context, parts);
    });
  }
}

}  // namespace shardproof::golden
