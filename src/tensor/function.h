// Differentiable operations with a backward of their own, written as those of
// torch::autograd::Function. A file that includes torch's header compiles 4 s longer, and 1 s for
// each operation, so function.cpp alone includes it.
//
//   struct Doubled : Function<Doubled> {
//     static at::Tensor forward(FunctionContext* ctx, const at::Tensor& x, double factor);
//     static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads);
//   };
//   at::Tensor y = Doubled::apply(x, 2.0);
//
// forward may return a tensor or several; backward returns a gradient for each argument of apply,
// undefined for one that is not a tensor, and one for each tensor of a list.
//
// Source: torch/csrc/autograd/custom_function.h
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <vector>

namespace c10 {
struct IValue;
}
namespace torch::autograd {
struct AutogradContext;
}

namespace shardproof {

// What a forward keeps for its backward.
class FunctionContext {
 public:
  explicit FunctionContext(torch::autograd::AutogradContext& context);

  void save_for_backward(std::vector<at::Tensor> tensors);
  // Throws if one was written to since the forward.
  std::vector<at::Tensor> get_saved_variables() const;
  // false: the gradient of an output that nobody used is undefined, and not zeros.
  void set_materialize_grads(bool value);
  // Of the tensors among the arguments, in their order.
  bool needs_input_grad(size_t tensor) const;

  // Values by name.
  class SavedData {
   public:
    explicit SavedData(torch::autograd::AutogradContext& context) : context_(context) {}
    c10::IValue& operator[](const char* name);

   private:
    torch::autograd::AutogradContext& context_;
  };
  SavedData saved_data;

 private:
  torch::autograd::AutogradContext& context_;
};

// The arguments of apply, as autograd needs them.
class FunctionInputs {
 public:
  void add(const at::Tensor& tensor);
  void add(const std::optional<at::Tensor>& tensor);
  void add(at::TensorList list);
  template <class Other>
  void add(const Other&) {
    is_tensor.push_back(0);
  }

  std::vector<at::Tensor> tensors;
  std::vector<int64_t> is_tensor;  // of each argument; a list counts as its tensors
};

using FunctionForward = std::function<std::vector<at::Tensor>(FunctionContext*)>;
using FunctionBackward = std::vector<at::Tensor> (*)(FunctionContext*, std::vector<at::Tensor>);
// Runs the forward; its outputs remember the backward.
std::vector<at::Tensor> apply_function(const FunctionInputs& inputs, const FunctionForward& forward,
                                       FunctionBackward backward);

template <class Operation>
struct Function {
  template <class... Arguments>
  static auto apply(Arguments&&... arguments) {
    FunctionInputs inputs;
    (inputs.add(arguments), ...);
    using Result = decltype(Operation::forward(nullptr, arguments...));
    constexpr bool kOne = std::is_same_v<Result, at::Tensor>;
    std::vector<at::Tensor> outputs = apply_function(
        inputs,
        [&](FunctionContext* context) -> std::vector<at::Tensor> {
          return {Operation::forward(context, arguments...)};
        },
        &Operation::backward);
    if constexpr (kOne) {
      return std::move(outputs[0]);
    } else {
      return outputs;
    }
  }
};

}  // namespace shardproof
