// Memory that processes of one host share without a file: a memfd that others open through /proc.
//
//   owner    SharedPages pages = SharedPages::create(bytes);   writes pages.bytes()
//   others   SharedPages::open(pages.address())                reads the same pages
//
// It goes when the last of them has let go, also when a process is killed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace shardproof {

// Enough to find the pages from another process, and to notice when others are found there.
struct SharedAddress {
  int64_t process = 0, descriptor = 0;
  int64_t bytes = 0;
  int64_t inode = 0;
  int64_t host = 0;  // of the boot id of the owner's kernel
};

class SharedPages {
 public:
  // Throws Error(kFailed): no memory for them.
  static SharedPages create(int64_t bytes);
  // Read only. Throws Error(kRefused): on another host, or in a container that keeps the owner's
  // descriptors from this process.
  static SharedPages open(const SharedAddress& address);
  ~SharedPages();
  SharedPages(SharedPages&& other) noexcept;
  SharedPages& operator=(SharedPages&&) = delete;

  const SharedAddress& address() const { return address_; }
  // [bytes] uint8 on CPU, over the pages; no longer than this lives. Only the owner's may be
  // written.
  at::Tensor bytes() const;

 private:
  SharedPages(SharedAddress address, int descriptor, bool writes);
  SharedAddress address_;
  int descriptor_ = -1;
  void* pages_ = nullptr;
};

}  // namespace shardproof
