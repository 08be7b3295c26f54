#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "tensor/aten_view.h"

using namespace shardproof;

namespace {

bool same(double a, double b) {
  return a == b ? std::signbit(a) == std::signbit(b) : a != a && b != b;
}

// Values that a dtype of 16 bits holds, and others near them.
std::vector<double> drawn_values() {
  std::mt19937_64 draw(1);
  std::vector<double> values = {0,        -0.0,  1,       65504,    65505,       65519,
                                65520,    1e5,   0x1p-24, 0x1p-25,  3 * 0x1p-25, 0x1p-133,
                                0x1p-134, 1e300, 1e-300,  INFINITY, -INFINITY};
  for (int bits = 0; bits < 65536; bits += 7) {
    const auto half = static_cast<uint16_t>(bits);
    values.push_back(static_cast<double>(Float16{half}));
    values.push_back(static_cast<double>(BFloat16{half}));
    values.push_back(static_cast<double>(Float16{half}) * (1 + 0x1p-11));
    values.push_back(static_cast<double>(BFloat16{half}) * (1 + 0x1p-30));
    values.push_back(std::bit_cast<double>(draw()));
  }
  return values;
}

template <class Narrow>
bool is_kept(double value) {
  return static_cast<double>(static_cast<Narrow>(value)) == value;
}

}  // namespace

TEST_CASE("every pattern of 16 bits has LibTorch's value", "[view]") {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    REQUIRE(same(static_cast<double>(Float16{half}), c10::Half(half, c10::Half::from_bits())));
    REQUIRE(
        same(static_cast<double>(BFloat16{half}), c10::BFloat16(half, c10::BFloat16::from_bits())));
  }
}

TEST_CASE("a value is of a narrow dtype if rounding to it changes nothing", "[view]") {
  for (const double value : drawn_values()) {
    CAPTURE(value);
    REQUIRE(is_float16(value) == is_kept<c10::Half>(value));
    REQUIRE(is_bfloat16(value) == is_kept<c10::BFloat16>(value));
    REQUIRE(is_float32(value) == is_kept<float>(value));
  }
}

TEST_CASE("a view has the tensor's dtype, shape, elements and memory", "[view]") {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                    at::kInt, at::kShort, at::kChar, at::kByte, at::kBool}) {
    const at::Tensor tensor = at::arange(6, at::kDouble).view({2, 3}).to(type);
    const TensorView view = view_of(tensor);
    CHECK(view.sizes() == std::vector<int64_t>{2, 3});
    CHECK(view.numel() == 6);
    CHECK(view.nbytes() == tensor.nbytes());
    CHECK(view.bytes() == tensor.const_data_ptr());
    CHECK(is_floating(view.dtype()) == at::isFloatingType(type));
    CHECK(at::equal(tensor_of(view), tensor));
    CHECK(tensor_of(view).const_data_ptr() == tensor.const_data_ptr());
    const at::Tensor wide = tensor.to(at::kDouble);
    const double* elements = wide.const_data_ptr<double>();
    CHECK(values_as<double>(view) == std::vector<double>(elements, elements + 6));
    CHECK(equal(view, view_of(tensor.clone())));
  }
}

TEST_CASE("a view keeps the memory when the tensor is gone", "[view]") {
  TensorView view = view_of(at::full({1000}, 7, at::kLong));
  at::Tensor tensor = tensor_of(view);
  view = {};
  CHECK(tensor.sum().item<int64_t>() == 7000);
}

TEST_CASE("a transposed tensor is seen in the order of its own elements", "[view]") {
  const at::Tensor tensor = at::arange(6, at::kLong).view({2, 3}).t();
  const TensorView view = view_of(tensor);
  CHECK(view.sizes() == std::vector<int64_t>{3, 2});
  CHECK(values_as<int64_t>(view) == std::vector<int64_t>{0, 3, 1, 4, 2, 5});
}

TEST_CASE("undefined, empty and scalar tensors", "[view]") {
  CHECK_FALSE(view_of(at::Tensor()).defined());
  CHECK_FALSE(tensor_of(TensorView()).defined());
  CHECK(tensor_of(view_of(at::empty({0, 4}, at::kFloat))).sizes() == at::IntArrayRef({0, 4}));
  CHECK(*view_of(at::scalar_tensor(2.5, at::kDouble)).data<double>() == 2.5);
  CHECK(view_of(at::scalar_tensor(2.5, at::kDouble)).dim() == 0);
}

TEST_CASE("elements are read as their own type, and equal needs the same dtype", "[view]") {
  const TensorView view = TensorView::of(std::vector<double>{1, 2}, {2});
  CHECK_THROWS_AS(view.data<float>(), InternalError);
  CHECK_THROWS_AS(view_of(at::zeros({1}, at::kComplexDouble)), InternalError);
  CHECK_THROWS_AS(TensorView::of(std::vector<double>{1, 2}, {3}), InternalError);
  CHECK_FALSE(equal(view, TensorView::of(std::vector<int64_t>{1, 2}, {2})));
  CHECK_FALSE(equal(view, TensorView::of(std::vector<double>{1, 2}, {1, 2})));
  CHECK_FALSE(equal(view, TensorView::of(std::vector<double>{1, NAN}, {2})));
}
