// Digests of tensors, and version counters where they prove a write.
#include "sim/world/emulated/watched_memory.h"

#include <ATen/ATen.h>

#include <cstring>

#include "base/digest.h"

namespace shardproof::sim::world {

WatchedMemory::WatchedMemory(const at::Tensor& tensor) : WatchedMemory(tensor, 0) {}

WatchedMemory WatchedMemory::of_one_value(const at::Tensor& tensor) {
  return WatchedMemory(tensor, tensor.element_size());
}

WatchedMemory::WatchedMemory(const at::Tensor& tensor, size_t period)
    : storage_(tensor.storage().getWeakStorageImpl()), period_(period) {
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  on_cpu_ = tensor.is_cpu();
  bytes_ = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  offset_ = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
  if (!tensor.is_non_overlapping_and_dense()) {
    strided_ = tensor.detach();
    period_ = 0;
  }
  counted_ = !tensor.is_inference() && bytes_ == tensor.storage().nbytes();
  if (tensor.storage().nbytes() <= kKeptBytes) kept_ = tensor.storage();
  if (counted_) {
    version_ = impl.version_counter();
    version_seen_ = version_.current_version();
  }
  if (bytes_ == 0 || !on_cpu_) return;
  const char* begin = static_cast<const char*>(tensor.storage().data()) + offset_;
  digest_ = period_ > 0 ? digest_of(begin, period_) : digest(begin);
}

uint64_t WatchedMemory::digest(const char* at) const {
  if (period_ > 0) {
    const bool repeats = std::memcmp(at, at + period_, bytes_ - period_) == 0;
    return repeats ? digest_of(at, period_) : ~digest_;
  }
  if (!strided_.defined()) return digest_of(at, bytes_);
  const at::Tensor packed = strided_.contiguous();
  return digest_of(packed.const_data_ptr(), bytes_);
}

WatchedMemory::Change WatchedMemory::change() const {
  if (bytes_ == 0) return Change::kNone;
  if (counted_ && version_.current_version() != version_seen_) return Change::kWritten;
  const auto storage = storage_.lock();
  if (!storage) return Change::kNone;
  if (!strided_.defined() && storage->nbytes() < offset_ + bytes_) return Change::kFreed;
  if (!on_cpu_) return Change::kNone;
  const char* now = static_cast<const char*>(storage->data()) + offset_;
  return digest(now) == digest_ ? Change::kNone : Change::kWritten;
}

bool WatchedMemory::overlaps(const at::Tensor& other) const {
  if (bytes_ == 0 || !on_cpu_ || strided_.defined()) return false;
  const auto storage = storage_.lock();
  if (!storage || storage->nbytes() < offset_ + bytes_) return false;  // the memory was freed
  if (!other.defined() || !other.is_cpu() || other.numel() == 0) return false;
  if (!other.is_non_overlapping_and_dense()) return false;
  const auto* from = static_cast<const char*>(other.const_data_ptr());
  const char* to = from + static_cast<size_t>(other.numel()) * other.element_size();
  const char* begin = static_cast<const char*>(storage->data()) + offset_;
  return from < begin + bytes_ && begin < to;
}

}  // namespace shardproof::sim::world
