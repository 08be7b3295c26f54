#include "tensor/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>

extern "C" void __asan_init() __attribute__((weak));  // where it is linked

namespace shardproof {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kLargest = 4096;  // of blocks that malloc gives, which keeps them for each thread

// Lies before the data. `reported`: to the meter that listened when it was allocated; 0 if none
// did.
struct Header {
  void* block;  // what malloc gave; null: data - kAlignment is from alloc_cpu
  int64_t reported;
};
static_assert(sizeof(Header) <= kAlignment);

Header& header_of(void* data) { return static_cast<Header*>(data)[-1]; }

void* allocate_block(size_t bytes) {
  void* block = bytes <= kLargest ? std::malloc(bytes + sizeof(Header) + kAlignment - 1) : nullptr;
  void* data = nullptr;
  if (block != nullptr) {
    const auto last = reinterpret_cast<uintptr_t>(block) + sizeof(Header) + kAlignment - 1;
    data = reinterpret_cast<void*>(last / kAlignment * kAlignment);
  } else {
    data = static_cast<char*>(c10::alloc_cpu(bytes + kAlignment)) + kAlignment;
  }
  header_of(data).block = block;
  return data;
}

void delete_block(void* data) {
  if (data == nullptr) return;
  const Header header = header_of(data);
  if (header.reported != 0 && c10::memoryProfilingEnabled()) {
    c10::reportMemoryUsageToProfiler(data, -header.reported, 0, 0, c10::Device(c10::kCPU));
  }
  if (header.block != nullptr) {
    std::free(header.block);
  } else {
    c10::free_cpu(static_cast<char*>(data) - kAlignment);
  }
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::kCPU);
    if (bytes == 0) return {nullptr, nullptr, &delete_block, cpu};
    void* data = allocate_block(bytes);
    const bool listens = c10::memoryProfilingEnabled();
    header_of(data).reported = listens ? static_cast<int64_t>(bytes) : 0;
    if (listens) c10::reportMemoryUsageToProfiler(data, header_of(data).reported, 0, 0, cpu);
    return {data, data, &delete_block, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

bool use_counting_allocator() {
  // AddressSanitizer, linked or preloaded, watches the ends of LibTorch's blocks.
  if (__asan_init != nullptr || ::dlsym(RTLD_DEFAULT, "__asan_init") != nullptr) return false;
  // Never deleted: static tensors may be freed after it would be.
  [[maybe_unused]] static const auto* const ours = [] {
    auto* const allocator = new CountingAllocator;
    c10::SetCPUAllocator(allocator);
    return allocator;
  }();
  return true;
}

}  // namespace shardproof
