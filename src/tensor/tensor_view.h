// A tensor to read: typed elements in row-major order in memory that it keeps alive. It has no
// arithmetic and needs no LibTorch; tensor/aten_view.h converts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "tensor/narrow_float.h"

namespace shardproof {

// The numbers are those of c10::ScalarType, and in the index of a golden (golden_record.h).
enum class Dtype : int8_t {
  kUint8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kBool = 11,
  kBFloat16 = 15,
};

std::string dtype_name(Dtype dtype);  // "float64", "bfloat16", "bool"
bool is_floating(Dtype dtype);
int64_t element_bytes(Dtype dtype);
bool is_dtype(int8_t number);  // whether one of them has this number

// Calls use(element), a value of the dtype's C++ type, and returns what it returns.
template <class Use>
decltype(auto) with_dtype(Dtype dtype, const Use& use) {
  switch (dtype) {
    case Dtype::kUint8:
      return use(uint8_t{});
    case Dtype::kInt8:
      return use(int8_t{});
    case Dtype::kInt16:
      return use(int16_t{});
    case Dtype::kInt32:
      return use(int32_t{});
    case Dtype::kInt64:
      return use(int64_t{});
    case Dtype::kFloat16:
      return use(Float16{});
    case Dtype::kFloat32:
      return use(float{});
    case Dtype::kFloat64:
      return use(double{});
    case Dtype::kBool:
      return use(bool{});
    case Dtype::kBFloat16:
      return use(BFloat16{});
  }
  SHARDPROOF_ASSERT(false, "a dtype that is none");
}

// As with_dtype, for the four floating-point dtypes.
template <class Use>
decltype(auto) with_floating_dtype(Dtype dtype, const Use& use) {
  switch (dtype) {
    case Dtype::kFloat64:
      return use(double{});
    case Dtype::kFloat32:
      return use(float{});
    case Dtype::kBFloat16:
      return use(BFloat16{});
    case Dtype::kFloat16:
      return use(Float16{});
    default:
      SHARDPROOF_ASSERT(false, dtype_name(dtype) + " elements are not floating-point numbers");
  }
}

class TensorView {
 public:
  TensorView() = default;  // undefined
  // `data` points at the first element and owns the memory.
  TensorView(std::shared_ptr<const void> data, Dtype dtype, std::vector<int64_t> sizes);
  static TensorView of(std::vector<double> values, std::vector<int64_t> sizes);
  static TensorView of(std::vector<int64_t> values, std::vector<int64_t> sizes);

  bool defined() const { return defined_; }
  Dtype dtype() const { return dtype_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  int64_t dim() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t size(int64_t dim) const { return sizes_.at(static_cast<size_t>(dim)); }
  int64_t numel() const { return numel_; }
  size_t nbytes() const { return static_cast<size_t>(numel_ * element_bytes(dtype_)); }
  const std::shared_ptr<const void>& owner() const { return data_; }
  const void* bytes() const { return data_.get(); }
  template <class Value>
  const Value* data() const {  // of exactly this type
    SHARDPROOF_ASSERT(holds<Value>(), "reading " + dtype_name(dtype_) + " as another dtype");
    return static_cast<const Value*>(data_.get());
  }
  template <class Value>
  bool holds() const {
    return with_dtype(dtype_, [](auto one) { return std::is_same_v<decltype(one), Value>; });
  }

 private:
  std::shared_ptr<const void> data_;
  std::vector<int64_t> sizes_;
  int64_t numel_ = 0;
  Dtype dtype_ = Dtype::kFloat64;
  bool defined_ = false;
};

// All elements as another type, converted as C++ does.
template <class Value>
std::vector<Value> values_as(const TensorView& tensor) {
  std::vector<Value> out(static_cast<size_t>(tensor.numel()));
  with_dtype(tensor.dtype(), [&](auto one) {
    const auto* from = tensor.data<decltype(one)>();
    for (size_t i = 0; i < out.size(); ++i) {
      if constexpr (std::is_class_v<decltype(one)>) {
        out[i] = static_cast<Value>(static_cast<double>(from[i]));
      } else {
        out[i] = static_cast<Value>(from[i]);
      }
    }
  });
  return out;
}

// Whether shape, dtype and all elements are equal; NaN equals nothing.
bool equal(const TensorView& a, const TensorView& b);

}  // namespace shardproof
