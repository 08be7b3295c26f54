#include "comm/wire.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "base/error.h"
#include "tensor/dtype_name.h"

namespace shardproof::wire {

bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

at::Tensor on_device_of(const c10d::Backend& backend, const at::Tensor& tensor) {
  const std::optional<at::Device> only = backend.getBoundDeviceId();
  return only && tensor.is_cpu() ? tensor.to(*only) : tensor;
}

at::Tensor for_moving(const c10d::Backend& backend, const at::Tensor& tensor) {
  const at::Tensor plain = on_device_of(backend, tensor.detach()).contiguous();
  return plain.scalar_type() == at::kBool ? plain.view(at::kByte) : plain;
}

at::Tensor moved_back(const at::Tensor& tensor, const at::TensorOptions& like) {
  const bool was_bool = like.dtype() == at::kBool && tensor.scalar_type() != at::kBool;
  return (was_bool ? tensor.view(at::kBool) : tensor).to(like.device());
}

Reduction reduction_for(at::ScalarType dtype, ReduceOp op, const BackendAbilities& abilities) {
  if (dtype == at::kBool) {
    const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
    return {at::kByte, any ? ReduceOp::kMax : ReduceOp::kMin};
  }
  const ReduceOp runs = op == ReduceOp::kAvg && !abilities.avg ? ReduceOp::kSum : op;
  return {is_half(dtype) && !abilities.half_sums ? at::kFloat : dtype, runs};
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
  }
  return c10d::ReduceOp::SUM;
}

void check_reduction(at::ScalarType dtype, ReduceOp op, std::string_view label) {
  if (op != ReduceOp::kAvg || at::isFloatingType(dtype)) return;
  throw_refused(fmt::format("'{}' averages a tensor of {}", label, dtype_name(dtype)),
                "sum it and divide in a floating dtype");
}

void divide(const at::Tensor& sum, int64_t count) {
  sum.div_(at::full({}, static_cast<double>(count), sum.options()));
}

at::Tensor reduce_in_order(const at::Tensor& pieces, ReduceOp op) {
  const at::ScalarType dtype = pieces.scalar_type();
  const at::ScalarType sum_type = is_half(dtype) ? at::kFloat : dtype;
  if (pieces.size(0) == 1) return pieces.select(0, 0).clone();
  at::Tensor sum = pieces.select(0, 0).to(sum_type);
  for (int64_t i = 1; i < pieces.size(0); ++i) {
    const at::Tensor piece = pieces.select(0, i).to(sum_type);
    const bool is_first = i == 1;  // the sum is a piece still, which stays
    switch (op) {
      case ReduceOp::kMax:
        sum = at::maximum(sum, piece);
        break;
      case ReduceOp::kMin:
        sum = at::minimum(sum, piece);
        break;
      case ReduceOp::kProduct:
        sum = is_first ? sum * piece : sum.mul_(piece);
        break;
      default:
        sum = is_first ? sum + piece : sum.add_(piece);
    }
  }
  if (op == ReduceOp::kAvg) divide(sum, pieces.size(0));
  return sum.to(dtype);
}

}  // namespace shardproof::wire
