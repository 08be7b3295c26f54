#include "sim/case/recorder/rounding_noise.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <limits>

#include "base/seed.h"
#include "model/wrapped_layer.h"

namespace shardproof::sim {

namespace {

double gap_above_one(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 0x1p-7;
    case at::kHalf:
      return 0x1p-10;
    case at::kFloat:
      return std::numeric_limits<float>::epsilon();
    default:
      return std::numeric_limits<double>::epsilon();
  }
}

}  // namespace

double half_gap(at::ScalarType dtype) { return gap_above_one(dtype) / 2; }

double roundings_of_member(at::ScalarType dtype) { return dtype == at::kDouble ? 4 : 1; }

at::Tensor uniform_noise(const at::Tensor& like, int64_t seed, const std::string& stream) {
  const auto generator = at::detail::createCPUGenerator(stream_seed(seed, stream));
  const at::Tensor noise = at::rand(like.sizes(), generator, at::dtype(at::kDouble));
  return noise.mul_(2).sub_(1).to(like.device());  // the same numbers on every device
}

at::Tensor moved_by_rounding(const at::Tensor& value, int64_t seed, const std::string& stream,
                             double roundings) {
  const double rounding = half_gap(value.scalar_type()) * roundings;
  const at::Tensor factor = uniform_noise(value, seed, stream).mul_(rounding).add_(1);
  return (value.to(at::kDouble) * factor).to(value.scalar_type());
}

at::Tensor doubted_within(const at::Tensor& value, double error, int64_t seed,
                          const std::string& stream) {
  const at::Tensor noise = uniform_noise(value, seed, stream);
  return at::where(value.abs() < error, value + noise.mul_(error).to(value.scalar_type()), value);
}

void change_outputs(Decoder& model, const ChangeOutput& change) {
  for (Slot* slot : model.slots()) {
    wrap_layer(*slot, [change, name = slot->name](Layer& inner, at::TensorList inputs,
                                                  const StepContext& context) {
      return change(inner.forward(inputs, context), name, context);
    });
  }
}

}  // namespace shardproof::sim
