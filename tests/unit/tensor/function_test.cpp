// Operations with a backward of their own: which arguments have gradients.
#include "tensor/function.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

namespace shardproof {
namespace {

// factor * x + bias
struct Scaled : Function<Scaled> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& x, double factor,
                            const std::optional<at::Tensor>& bias) {
    ctx->saved_data["factor"] = factor;
    ctx->save_for_backward({x});
    const at::Tensor y = x * factor;
    return bias ? y + *bias : y;
  }
  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    CHECK(at::equal(ctx->get_saved_variables()[0], at::arange(3, at::kDouble)));
    const double factor = ctx->saved_data["factor"].toDouble();
    const at::Tensor bias = ctx->needs_input_grad(1) ? grads[0] : at::Tensor();
    return {grads[0] * factor, at::Tensor(), bias};
  }
};

// Of each tensor the given multiple; with too few gradients where `lacking`.
struct Multiples : Function<Multiples> {
  static std::vector<at::Tensor> forward(FunctionContext* ctx, bool lacking, at::TensorList list) {
    ctx->saved_data["lacking"] = lacking;
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < list.size(); ++i) outputs.push_back(list[i] * double(i + 2));
    return outputs;
  }
  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    std::vector<at::Tensor> out(ctx->saved_data["lacking"].toBool() ? 0 : 1);  // of the flag
    for (size_t i = 0; i < grads.size(); ++i) out.push_back(grads[i] * double(i + 2));
    return out;
  }
};

at::Tensor leaf() { return at::arange(3, at::kDouble).requires_grad_(); }

at::Tensor all_of(double value) { return at::full({3}, value, at::kDouble); }

}  // namespace

TEST_CASE("each tensor among the arguments of a function gets its gradient", "[function]") {
  const at::Tensor x = leaf(), bias = leaf();
  at::Tensor y = Scaled::apply(x, 3.0, std::optional(bias));
  CHECK(at::equal(y.detach(), at::arange(3, at::kDouble) * 4));
  y.sum().backward();
  CHECK(at::equal(x.grad(), all_of(3)));
  CHECK(at::equal(bias.grad(), all_of(1)));
}

TEST_CASE("an argument that is left out has no gradient", "[function]") {
  const at::Tensor x = leaf();
  // The only tensor is the first one, so nothing asks for a second gradient.
  struct Alone : Function<Alone> {
    static at::Tensor forward(FunctionContext*, const at::Tensor& x, double factor,
                              const std::optional<at::Tensor>& bias) {
      CHECK_FALSE(bias);
      return x * factor;
    }
    static std::vector<at::Tensor> backward(FunctionContext*, std::vector<at::Tensor> grads) {
      return {grads[0] * 3, at::Tensor(), at::Tensor()};
    }
  };
  Alone::apply(x, 3.0, std::optional<at::Tensor>()).sum().backward();
  CHECK(at::equal(x.grad(), all_of(3)));
}

TEST_CASE("the tensors of a list are arguments of their own", "[function]") {
  const std::vector<at::Tensor> list = {leaf(), leaf()};
  const std::vector<at::Tensor> y = Multiples::apply(false, at::TensorList(list));
  REQUIRE(y.size() == 2);
  (y[0] + y[1]).sum().backward();
  CHECK(at::equal(list[0].grad(), all_of(2)));
  CHECK(at::equal(list[1].grad(), all_of(3)));
}

TEST_CASE("a backward with too few gradients is a fault", "[function]") {
  const std::vector<at::Tensor> list = {leaf()};
  const at::Tensor sum = Multiples::apply(true, at::TensorList(list))[0].sum();
  CHECK_THROWS_WITH(sum.backward(), Catch::Matchers::Contains("as many gradients"));
}

}  // namespace shardproof
