#include "model/precision.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/precision.h"

namespace shardproof {

at::ScalarType dtype_of_precision(const std::string& precision) {
  constexpr std::array kDtypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
  const auto found = find_enum<Precision>(precision);
  if (found) return kDtypes.at(static_cast<size_t>(*found));
  throw_refused(fmt::format("precision \"{}\" is not supported", precision),
                "use float64, float32, bfloat16 or float16");
}

at::ScalarType wider_type(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor master_of(const Parameter& parameter) {
  return parameter.master.defined() ? parameter.master : parameter.tensor.detach();
}

at::Tensor gradient_of(const Parameter& parameter) {
  const at::Tensor& leaf = parameter.tensor;
  const at::ScalarType wide = wider_type(leaf.scalar_type());
  if (!leaf.grad().defined()) return at::zeros(leaf.sizes(), leaf.options().dtype(wide));
  return leaf.grad().detach().to(wide);
}

void refresh_leaf(const Parameter& parameter) {
  if (!parameter.master.defined()) return;
  const at::NoGradGuard no_grad;
  parameter.tensor.copy_(parameter.master);
}

}  // namespace shardproof
