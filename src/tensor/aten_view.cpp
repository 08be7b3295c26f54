#include "tensor/aten_view.h"

#include <ATen/ATen.h>

namespace shardproof {

static_assert(static_cast<int8_t>(Dtype::kUint8) == static_cast<int8_t>(at::kByte));
static_assert(static_cast<int8_t>(Dtype::kInt8) == static_cast<int8_t>(at::kChar));
static_assert(static_cast<int8_t>(Dtype::kInt16) == static_cast<int8_t>(at::kShort));
static_assert(static_cast<int8_t>(Dtype::kInt32) == static_cast<int8_t>(at::kInt));
static_assert(static_cast<int8_t>(Dtype::kInt64) == static_cast<int8_t>(at::kLong));
static_assert(static_cast<int8_t>(Dtype::kFloat16) == static_cast<int8_t>(at::kHalf));
static_assert(static_cast<int8_t>(Dtype::kFloat32) == static_cast<int8_t>(at::kFloat));
static_assert(static_cast<int8_t>(Dtype::kFloat64) == static_cast<int8_t>(at::kDouble));
static_assert(static_cast<int8_t>(Dtype::kBool) == static_cast<int8_t>(at::kBool));
static_assert(static_cast<int8_t>(Dtype::kBFloat16) == static_cast<int8_t>(at::kBFloat16));

std::optional<Dtype> dtype_of(at::ScalarType type) {
  const auto number = static_cast<int8_t>(type);
  if (!is_dtype(number)) return std::nullopt;
  return static_cast<Dtype>(number);
}

TensorView view_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const std::optional<Dtype> dtype = dtype_of(tensor.scalar_type());
  SHARDPROOF_ASSERT(dtype, std::string("no view of ") + c10::toString(tensor.scalar_type()));
  const auto kept = std::make_shared<const at::Tensor>(tensor.detach().cpu().contiguous());
  return {std::shared_ptr<const void>(kept, kept->const_data_ptr()), *dtype, kept->sizes().vec()};
}

at::Tensor tensor_of(const TensorView& view) {
  if (!view.defined()) return {};
  const at::TensorOptions options(static_cast<at::ScalarType>(view.dtype()));
  if (view.numel() == 0) return at::empty(view.sizes(), options);
  return at::from_blob(
      const_cast<void*>(view.bytes()), view.sizes(), [kept = view.owner()](void*) {}, options);
}

}  // namespace shardproof
