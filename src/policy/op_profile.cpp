// Observes ops through LibTorch's RecordFunction.
#include "policy/op_profile.h"

// As LibTorch was built: the header asserts on a flag that the library never sets.
#define NDEBUG
#include <ATen/record_function.h>

#include <chrono>

namespace shardproof {

struct OpProfile::Impl {
  std::map<std::string, OpCost> costs;
  at::CallbackHandle handle = 0;
};

namespace {

using ProfileClock = std::chrono::steady_clock;

// The profile of each thread, for the callbacks of RecordFunction, which are plain functions.
thread_local std::map<std::string, OpCost>* costs_of_thread = nullptr;

struct StartedOp final : at::ObserverContext {
  ProfileClock::time_point start = ProfileClock::now();
};

std::unique_ptr<at::ObserverContext> begin_op(const at::RecordFunction&) {
  return std::make_unique<StartedOp>();
}

void end_op(const at::RecordFunction& function, at::ObserverContext* context) {
  if (costs_of_thread == nullptr || context == nullptr) return;
  const auto* started = static_cast<const StartedOp*>(context);
  OpCost& cost = (*costs_of_thread)[function.name()];
  ++cost.calls;
  cost.seconds += std::chrono::duration<double>(ProfileClock::now() - started->start).count();
}

}  // namespace

OpProfile::OpProfile() : impl_(std::make_unique<Impl>()) {
  costs_of_thread = &impl_->costs;
  impl_->handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin_op, end_op).scopes({at::RecordScope::FUNCTION}));
}

OpProfile::~OpProfile() {
  at::removeCallback(impl_->handle);
  if (costs_of_thread == &impl_->costs) costs_of_thread = nullptr;
}

const std::map<std::string, OpCost>& OpProfile::costs() const { return impl_->costs; }

}  // namespace shardproof
