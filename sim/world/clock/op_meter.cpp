// LibTorch's RecordFunction reports ops. An op that calls others counts once; a product (mm, addmm,
// bmm, baddbmm) counts its multiplications at any depth.
#include "sim/world/clock/op_meter.h"

// As LibTorch was built: the header asserts on a flag that the library never sets.
#define NDEBUG
#include <ATen/record_function.h>

#include <cstring>
#include <utility>

namespace shardproof::sim::world {

namespace {

// RecordFunction's callbacks are plain functions, so they find the meter of their thread here.
thread_local OpMeter* meter_of_thread = nullptr;

// The index of a product's first factor among its arguments; -1: the op is not a product.
int first_factor(const char* name) {
  if (std::strncmp(name, "aten::", 6) != 0) return -1;
  name += 6;
  if (std::strcmp(name, "mm") == 0 || std::strcmp(name, "bmm") == 0) return 0;
  if (std::strcmp(name, "addmm") == 0 || std::strcmp(name, "baddbmm") == 0) return 1;
  return -1;
}

double product_flops(const at::RecordFunction& function) {
  const int first = first_factor(function.name());
  if (first < 0) return 0;
  const auto inputs = function.inputs();
  const auto second = static_cast<size_t>(first) + 1;
  if (inputs.size() <= second || !inputs[second - 1].isTensor() || !inputs[second].isTensor()) {
    return 0;
  }
  const at::Tensor& left = inputs[second - 1].toTensor();
  return 2.0 * static_cast<double>(left.numel()) *
         static_cast<double>(inputs[second].toTensor().size(-1));
}

}  // namespace

OpMeter::OpMeter(double op_us, double gflop_per_s)
    : op_us_(op_us), us_per_flop_(gflop_per_s > 0 ? 1e-3 / gflop_per_s : 0) {
  meter_of_thread = this;
  const auto begin =
      [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    OpMeter* meter = meter_of_thread;
    if (meter == nullptr) return nullptr;
    if (meter->depth_++ == 0) ++meter->ops_;
    if (meter->us_per_flop_ > 0) meter->flops_ += product_flops(function);
    return nullptr;
  };
  const auto end = [](const at::RecordFunction&, at::ObserverContext*) {
    OpMeter* meter = meter_of_thread;
    if (meter != nullptr && meter->depth_ > 0) --meter->depth_;
  };
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                           .needsInputs(us_per_flop_ > 0)
                                           .scopes({at::RecordScope::FUNCTION}));
}

OpMeter::~OpMeter() {
  at::removeCallback(handle_);
  if (meter_of_thread == this) meter_of_thread = nullptr;
}

double OpMeter::take_us() {
  return static_cast<double>(std::exchange(ops_, 0)) * op_us_ +
         std::exchange(flops_, 0) * us_per_flop_;
}

}  // namespace shardproof::sim::world
