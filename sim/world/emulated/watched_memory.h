// Finds writes to the bytes of a tensor between two moments. A small storage is kept in memory
// until the second moment, so that writes before it is freed are found too.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace shardproof::sim::world {

class WatchedMemory {
 public:
  enum class Change { kNone, kWritten, kFreed };

  // Computes a digest in one pass over the tensor's bytes (CUDA: none, only the version counter).
  explicit WatchedMemory(const at::Tensor& tensor);
  // For a tensor whose elements all have the same bytes: reads only one of them.
  static WatchedMemory of_one_value(const at::Tensor& tensor);

  // The size up to which a storage is kept in memory. A larger one may be freed, as a bucket that a
  // rank drops while it waits; then only the version counter shows writes.
  static constexpr size_t kKeptBytes = 64 * 1024;

  // kWritten: the bytes differ, or the version counter has changed and belongs to this tensor alone
  // (a counter shared with other pieces of the storage proves nothing). kFreed: the storage has
  // become too small. A tensor that is dropped has not changed.
  Change change() const;
  // Whether both are contiguous and have bytes in common.
  bool overlaps(const at::Tensor& other) const;

 private:
  WatchedMemory(const at::Tensor& tensor, size_t period);
  uint64_t digest(const char* at) const;

  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  c10::Storage kept_;     // the storage, if it is small
  at::Tensor strided_;    // the tensor, if it is not contiguous; else undefined
  bool counted_ = false;  // whether version_ counts writes to these bytes only
  c10::VariableVersion version_;
  uint32_t version_seen_ = 0;
  bool on_cpu_ = true;
  size_t offset_ = 0, bytes_ = 0;  // within the storage
  size_t period_ = 0;              // > 0: the bytes repeat with this period
  uint64_t digest_ = 0;
};

}  // namespace shardproof::sim::world
