#include "sim/world/process/op_count.h"

// As LibTorch was built: the header asserts on a flag that the library never sets.
#define NDEBUG
#include <ATen/record_function.h>

#include <atomic>

namespace shardproof::sim::world {
namespace {

std::atomic<uint64_t> begun_ops = 0;

std::unique_ptr<at::ObserverContext> count_op(const at::RecordFunction&) {
  begun_ops.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

}  // namespace

uint64_t ops_begun() {
  static const at::CallbackHandle handle = at::addGlobalCallback(
      at::RecordFunctionCallback(count_op).scopes({at::RecordScope::FUNCTION}));
  static_cast<void>(handle);  // counts until the process ends
  return begun_ops.load(std::memory_order_relaxed);
}

}  // namespace shardproof::sim::world
