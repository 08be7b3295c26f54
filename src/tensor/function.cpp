#include "tensor/function.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "base/error.h"

namespace shardproof {
namespace {

using torch::autograd::AutogradContext;

constexpr const char* kBackward = "shardproof.backward";
constexpr const char* kIsTensor = "shardproof.is_tensor";

// Every operation: its backward and its arguments are data.
struct AnyFunction : torch::autograd::Function<AnyFunction> {
  static std::vector<at::Tensor> forward(AutogradContext* ctx, at::TensorList,
                                         const FunctionInputs& inputs,
                                         const FunctionForward& forward,
                                         FunctionBackward backward) {
    ctx->saved_data[kBackward] = reinterpret_cast<int64_t>(backward);
    ctx->saved_data[kIsTensor] = inputs.is_tensor;
    FunctionContext context(*ctx);
    return forward(&context);
  }

  static std::vector<at::Tensor> backward(AutogradContext* ctx, std::vector<at::Tensor> grads) {
    const auto own = reinterpret_cast<FunctionBackward>(ctx->saved_data[kBackward].toInt());
    const std::vector<int64_t> is_tensor = ctx->saved_data[kIsTensor].toIntVector();
    FunctionContext context(*ctx);
    const std::vector<at::Tensor> given = own(&context, std::move(grads));
    SHARDPROOF_ASSERT(given.size() == is_tensor.size(),
                      "a backward gives as many gradients as its function has arguments");
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < given.size(); ++i) {
      SHARDPROOF_ASSERT(is_tensor[i] != 0 || !given[i].defined(),
                        "what is not a tensor has no gradient");
      if (is_tensor[i] != 0) gradients.push_back(given[i]);
    }
    gradients.resize(gradients.size() + 3);  // of inputs, forward and backward
    return gradients;
  }
};

}  // namespace

FunctionContext::FunctionContext(AutogradContext& context)
    : saved_data(context), context_(context) {}

void FunctionContext::save_for_backward(std::vector<at::Tensor> tensors) {
  context_.save_for_backward(std::move(tensors));
}

std::vector<at::Tensor> FunctionContext::get_saved_variables() const {
  return context_.get_saved_variables();
}

void FunctionContext::set_materialize_grads(bool value) { context_.set_materialize_grads(value); }

bool FunctionContext::needs_input_grad(size_t tensor) const {
  return context_.needs_input_grad(tensor);
}

c10::IValue& FunctionContext::SavedData::operator[](const char* name) {
  return context_.saved_data[name];
}

void FunctionInputs::add(const at::Tensor& tensor) {
  tensors.push_back(tensor);
  is_tensor.push_back(1);
}

void FunctionInputs::add(const std::optional<at::Tensor>& tensor) {
  const bool has = tensor && tensor->defined();
  if (has) tensors.push_back(*tensor);
  is_tensor.push_back(has ? 1 : 0);
}

void FunctionInputs::add(at::TensorList list) {
  for (const at::Tensor& tensor : list) add(tensor);
}

std::vector<at::Tensor> apply_function(const FunctionInputs& inputs, const FunctionForward& forward,
                                       FunctionBackward backward) {
  return AnyFunction::apply(at::TensorList(inputs.tensors), inputs, forward, backward);
}

}  // namespace shardproof
