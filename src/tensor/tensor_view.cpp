#include "tensor/tensor_view.h"

#include <algorithm>
#include <numeric>

namespace shardproof {
namespace {

template <class Value>
TensorView owning(std::vector<Value> values, Dtype dtype, std::vector<int64_t> sizes) {
  const auto kept = std::make_shared<const std::vector<Value>>(std::move(values));
  TensorView view(std::shared_ptr<const void>(kept, kept->data()), dtype, std::move(sizes));
  SHARDPROOF_ASSERT(view.numel() == std::ssize(*kept), "as many values as the shape has");
  return view;
}

}  // namespace

std::string dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
      return "float64";
    case Dtype::kFloat32:
      return "float32";
    case Dtype::kFloat16:
      return "float16";
    case Dtype::kBFloat16:
      return "bfloat16";
    case Dtype::kInt64:
      return "int64";
    case Dtype::kInt32:
      return "int32";
    case Dtype::kInt16:
      return "int16";
    case Dtype::kInt8:
      return "int8";
    case Dtype::kUint8:
      return "uint8";
    case Dtype::kBool:
      return "bool";
  }
  return "?";
}

bool is_floating(Dtype dtype) {
  return dtype == Dtype::kFloat64 || dtype == Dtype::kFloat32 || dtype == Dtype::kFloat16 ||
         dtype == Dtype::kBFloat16;
}

int64_t element_bytes(Dtype dtype) {
  return with_dtype(dtype, [](auto one) { return static_cast<int64_t>(sizeof(one)); });
}

bool is_dtype(int8_t number) { return dtype_name(static_cast<Dtype>(number)) != "?"; }

TensorView::TensorView(std::shared_ptr<const void> data, Dtype dtype, std::vector<int64_t> sizes)
    : data_(std::move(data)),
      sizes_(std::move(sizes)),
      numel_(std::accumulate(sizes_.begin(), sizes_.end(), int64_t{1}, std::multiplies<>())),
      dtype_(dtype),
      defined_(true) {}

TensorView TensorView::of(std::vector<double> values, std::vector<int64_t> sizes) {
  return owning(std::move(values), Dtype::kFloat64, std::move(sizes));
}

TensorView TensorView::of(std::vector<int64_t> values, std::vector<int64_t> sizes) {
  return owning(std::move(values), Dtype::kInt64, std::move(sizes));
}

bool equal(const TensorView& a, const TensorView& b) {
  if (a.dtype() != b.dtype() || a.sizes() != b.sizes()) return false;
  return with_dtype(a.dtype(), [&](auto one) {
    const auto* left = a.data<decltype(one)>();
    const auto* right = b.data<decltype(one)>();
    return std::equal(left, left + a.numel(), right, [](const auto& x, const auto& y) {
      if constexpr (std::is_class_v<decltype(one)>) {
        return static_cast<double>(x) == static_cast<double>(y);
      } else {
        return x == y;
      }
    });
  });
}

}  // namespace shardproof
