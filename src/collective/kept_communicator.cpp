#include "collective/kept_communicator.h"

#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include "comm/communicator_handle.h"

namespace shardproof {
namespace {

struct Kept : torch::CustomClassHolder {
  explicit Kept(Communicator& communicator) : handle(communicator) {}
  CommunicatorHandle handle;
};

}  // namespace

c10::IValue keep_communicator(Communicator& communicator) {
  return c10::IValue::make_capsule(c10::make_intrusive<Kept>(communicator));
}

Communicator& kept_communicator(const c10::IValue& kept) {
  return *c10::static_intrusive_pointer_cast<Kept>(kept.toCapsule())->handle;
}

}  // namespace shardproof
