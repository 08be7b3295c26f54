// The bytes of one tensor between two looks: whether somebody wrote them. A small storage is kept
// alive until the second look, so that bytes which were written and then let go are seen too.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace shardproof::sim {

class WatchedMemory {
 public:
  enum class Change { kNone, kWritten, kFreed };

  // Takes a digest of the tensor's bytes, one pass over them (CUDA: none, the version counter
  // alone).
  explicit WatchedMemory(const at::Tensor& tensor);
  // Of a tensor whose elements all have the same bytes: only one is looked at now.
  static WatchedMemory of_one_value(const at::Tensor& tensor);

  // Storages up to here are kept. Of a larger one that nobody holds any more the version counter
  // alone tells whether it was written, so that a bucket which a rank lets go of while it waits is
  // not held for the watching alone.
  static constexpr size_t kKeptBytes = 64 * 1024;

  // kWritten: the bytes differ, or the version counter of a tensor that has its storage for itself
  // has moved. A counter that other pieces of the same storage share proves nothing. kFreed: the
  // storage is there but no longer reaches that far. Letting go of a tensor is no change.
  Change change() const;
  // Both are contiguous and have bytes in common.
  bool overlaps(const at::Tensor& other) const;

 private:
  WatchedMemory(const at::Tensor& tensor, size_t period);
  uint64_t digest(const char* at) const;

  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  c10::Storage kept_;     // the same, if small
  at::Tensor strided_;    // held: one whose elements do not lie side by side; else undefined
  bool counted_ = false;  // whether version_ counts writes to these bytes only
  c10::VariableVersion version_;
  uint32_t version_seen_ = 0;
  bool on_cpu_ = true;
  size_t offset_ = 0, bytes_ = 0;  // within the storage
  size_t period_ = 0;              // > 0: after so many bytes they repeat, to the end
  uint64_t digest_ = 0;
};

}  // namespace shardproof::sim
