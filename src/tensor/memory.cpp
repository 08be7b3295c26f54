#include "tensor/memory.h"

#include <ATen/ATen.h>

#include <set>

#include "base/error.h"

namespace shardproof {

void free_memory(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(static_cast<size_t>(0));
}

void allocate_memory(const at::Tensor& tensor) {
  SHARDPROOF_ASSERT(tensor.is_contiguous() && tensor.storage_offset() == 0,
                    "memory comes back for a whole tensor");
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

int64_t memory_bytes(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.storage().nbytes());
}

int64_t memory_of(const std::vector<at::Tensor>& tensors) {
  std::set<const void*> seen;
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (seen.insert(storage).second) bytes += static_cast<int64_t>(storage->nbytes());
  }
  return bytes;
}

}  // namespace shardproof
