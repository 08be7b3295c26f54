#include "random/dropout.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

void check_probability(double p) {
  if (p >= 0 && p <= 1) return;
  throw_bad_input(fmt::format("a dropout of {}", p), "give a probability from 0 to 1");
}

at::Tensor kept(const at::Tensor& x, const at::Tensor& keep, double scale) {
  const at::Tensor zero = at::zeros({}, x.options());
  return at::where(keep, x * scale, zero);
}

struct DropoutFunction : Function<DropoutFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& x, const at::Tensor& keep,
                            double scale) {
    ctx->save_for_backward({keep});
    ctx->saved_data["scale"] = scale;
    return kept(x, keep, scale);
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "dropout has no second derivative");
    const at::Tensor keep = ctx->get_saved_variables()[0];
    return {kept(grads[0], keep, ctx->saved_data["scale"].toDouble()), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, RngTracker& rng, std::string_view place) {
  check_probability(p);
  if (p == 0) return x;
  const at::Tensor keep = rng.uniform(x.sizes(), place).ge(p).to(x.device());
  return DropoutFunction::apply(x, keep, p < 1 ? 1 / (1 - p) : 0.0);
}

Dropout::Dropout(double p, std::string place) : p_(p), place_(std::move(place)) {
  check_probability(p);
}

at::Tensor Dropout::forward(const at::Tensor& x, RngTracker& rng) const {
  return training_ ? dropout(x, p_, rng, place_) : x;
}

}  // namespace shardproof
