#include "sim/world/rank/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>

namespace shardproof::sim {
namespace {

// Gloo's thread calls this as well, for memory that it allocates for the rank's calls.
class Meter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    const int64_t now = current_.fetch_add(bytes) + bytes;
    int64_t peak = peak_.load();
    while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t current() const { return current_.load(); }
  int64_t peak() const { return peak_.load(); }

 private:
  std::atomic<int64_t> current_ = 0, peak_ = 0;
};

}  // namespace

struct TensorMemory::Impl {
  std::shared_ptr<Meter> meter = std::make_shared<Meter>();
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, meter};
};

TensorMemory::TensorMemory() : impl_(std::make_unique<Impl>()) {}
TensorMemory::~TensorMemory() = default;
int64_t TensorMemory::current_bytes() const { return impl_->meter->current(); }
int64_t TensorMemory::peak_bytes() const { return impl_->meter->peak(); }

}  // namespace shardproof::sim
