// Memory that processes of one host share without a file: a memfd that others open through /proc.
//
//   owner    SharedPages pages = SharedPages::create(bytes);   writes pages.bytes()
//   others   SharedPages::open(pages.address())                reads the same pages
//
// The memory is freed when the last process has closed it, or was killed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/mapped_pages.h"

namespace shardproof {

// Enough to find the pages from another process, and to detect that other pages are found there.
struct SharedAddress {
  int64_t process = 0, descriptor = 0;
  int64_t bytes = 0;
  int64_t inode = 0;
  int64_t host = 0;  // a hash of the boot id of the owner's kernel
};

class SharedPages {
 public:
  // Throws Error(kFailed) when there is no memory for them.
  static SharedPages create(int64_t bytes);
  // Opens the pages read-only. Throws Error(kRefused) on another host, and in a container that
  // hides the owner's descriptors from this process.
  static SharedPages open(const SharedAddress& address);

  const SharedAddress& address() const { return address_; }
  // [bytes] uint8 on CPU, over the pages; valid only while this object exists. Only the owner may
  // write to it.
  at::Tensor bytes() const;

 private:
  SharedPages(SharedAddress address, OwnedFd descriptor, bool writes);
  SharedAddress address_;
  OwnedFd descriptor_;
  MappedPages pages_;
};

}  // namespace shardproof
