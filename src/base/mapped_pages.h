// Memory that processes share: the pages of a file, which unmap themselves.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/owned_fd.h"
#include "base/shortage.h"

namespace shardproof {

class MappedPages {
 public:
  MappedPages() = default;
  // data() is null where the system refuses, and errno says why.
  MappedPages(int fd, size_t bytes, bool writes) : size_(bytes) {
    const int access = writes ? PROT_READ | PROT_WRITE : PROT_READ;
    void* pages = ::mmap(nullptr, bytes, access, MAP_SHARED, fd, 0);
    if (pages != MAP_FAILED) data_ = pages;
  }
  // Of the whole file; null of an empty one, too.
  static MappedPages of_file(int fd, bool writes) {
    struct stat info {};
    if (::fstat(fd, &info) != 0 || info.st_size == 0) return {};
    return {fd, static_cast<size_t>(info.st_size), writes};
  }
  MappedPages(MappedPages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  MappedPages& operator=(MappedPages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MappedPages() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }

  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// A file of zeros in memory. Throws as throw_shortage() does: "no shared memory is left for ..".
inline OwnedFd new_memory(const char* name, size_t bytes, const std::string& use) {
  OwnedFd memory(::memfd_create(name, MFD_CLOEXEC));
  if (!memory.valid() || ::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
    throw_shortage("no shared memory is left for " + use, errno);
  }
  return memory;
}

}  // namespace shardproof
