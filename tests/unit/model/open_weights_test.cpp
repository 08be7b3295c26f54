#include "model/open_weights.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <catch2/catch.hpp>
#include <vector>

#include "model/decoder.h"
#include "observe/probe.h"

namespace shardproof::open_weights_test {
namespace {

// Two linears of one input, the second one without a bias, and a third that has the matrix of the
// first one.
//
//   x [1, 5, 6] -> gate, up -> gate * up -> gate's matrix again
struct SmallModel {
  explicit SmallModel(at::ScalarType dtype) {
    at::Generator draw = at::make_generator<at::CPUGeneratorImpl>(3);
    const auto parameter = [&](const char* name, std::vector<int64_t> shape) {
      const at::Tensor drawn = at::randn(shape, draw, at::TensorOptions().dtype(at::kDouble));
      return std::make_shared<Parameter>(
          Parameter{.name = name, .tensor = drawn.to(dtype).requires_grad_(true)});
    };
    shared = parameter("shared", {6, 6});
    up = parameter("up", {6, 6});
    bias = parameter("bias", {6});
    for (int i = 0; i < 3; ++i) {
      inputs.push_back(
          at::randn({1, 5, 6}, draw, at::TensorOptions().dtype(at::kDouble)).to(dtype));
      inputs.back().requires_grad_(true);
    }
  }

  // The backward of the microbatch, from a gradient that differs at every position.
  void backward(int64_t microbatch, OpenWeights* open) {
    NoProbe probe;
    const StepContext context{.probe = probe, .microbatch = microbatch, .open_weights = open};
    const at::Tensor& x = inputs[static_cast<size_t>(microbatch)];
    const at::Tensor gate = Linear(shared, bias).forward({x}, context);
    const at::Tensor product = gate * Linear(up, nullptr).forward({x}, context);
    const at::Tensor y = Linear(shared, nullptr).forward({product}, context);
    y.backward(at::arange(30, y.options()).view({1, 5, 6}) / 7);
  }

  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const auto& each : {shared, up, bias}) all.push_back(each->tensor.grad());
    for (const at::Tensor& input : inputs) all.push_back(input.grad());
    return all;
  }

  ParameterPtr shared, up, bias;
  std::vector<at::Tensor> inputs;
};

}  // namespace

TEST_CASE("a split backward leaves the bits of a whole one", "[model]") {
  const auto dtype = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  const bool main = GENERATE(false, true);
  CAPTURE(dtype, main);
  SmallModel whole(dtype), split(dtype);
  for (SmallModel* model : {&whole, &split}) {
    if (!main) continue;
    model->shared->main_gradient = std::make_shared<MainGradient>();
    model->shared->main_gradient->sum = at::zeros({6, 6}, at::kDouble);
  }
  for (int64_t i = 0; i < 3; ++i) whole.backward(i, nullptr);

  OpenWeights open;
  split.backward(0, &open);
  CHECK_FALSE(split.shared->tensor.grad().defined());
  CHECK_FALSE(split.up->tensor.grad().defined());
  CHECK(split.bias->tensor.grad().defined());
  CHECK(split.inputs[0].grad().defined());
  split.backward(1, &open);
  open.finish(0, 0);
  split.backward(2, &open);
  open.finish(0, 1);
  CHECK_FALSE(open.empty());
  open.finish(0, 2);
  CHECK(open.empty());
  const auto expected = whole.gradients(), found = split.gradients();
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    REQUIRE(expected[i].defined() == found[i].defined());
    if (expected[i].defined()) CHECK(at::equal(expected[i], found[i]));
  }
  if (main) {
    CHECK(at::equal(whole.shared->main_gradient->sum, split.shared->main_gradient->sum));
    CHECK(split.shared->main_gradient->sum.abs().sum().item<double>() > 0);
  }
}

TEST_CASE("weight gradients free what they kept, and so does an abandoned step", "[model]") {
  SmallModel model(at::kDouble);
  OpenWeights open;
  model.backward(0, &open);
  const auto holders = [&] { return model.inputs[0].storage().use_count(); };
  const auto kept = holders();
  const bool drops = GENERATE(false, true);
  if (drops) {
    open.drop();
  } else {
    open.finish(0, 0);
  }
  CHECK(holders() == kept - 2);  // of gate and up
  CHECK(model.up->tensor.grad().defined() == !drops);
}

TEST_CASE("a linear of an input without a gradient leaves its matrix too", "[model]") {
  SmallModel model(at::kDouble);
  model.inputs[0].requires_grad_(false);
  model.bias->tensor.requires_grad_(false);
  OpenWeights open;
  model.backward(0, &open);
  CHECK_FALSE(model.up->tensor.grad().defined());
  open.finish(0, 0);
  CHECK(model.up->tensor.grad().defined());
  CHECK(open.empty());
}

}  // namespace shardproof::open_weights_test
