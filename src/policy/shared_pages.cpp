#include "policy/shared_pages.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/seed.h"

namespace shardproof {
namespace {

int64_t this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return static_cast<int64_t>(stream_seed(0, id));
}

int64_t inode_of(int descriptor) {
  struct stat status = {};
  return ::fstat(descriptor, &status) == 0 ? static_cast<int64_t>(status.st_ino) : -1;
}

[[noreturn]] void not_there(const SharedAddress& address, const std::string& why) {
  throw_refused(fmt::format("the shared memory of process {} cannot be opened here: {}",
                            address.process, why),
                "hand the weights over by broadcast");
}

}  // namespace

SharedPages SharedPages::create(int64_t bytes) {
  const int descriptor = ::memfd_create("shardproof weights", MFD_CLOEXEC);
  if (descriptor < 0 || ::ftruncate(descriptor, bytes) != 0) {
    const std::string why = std::strerror(errno);
    if (descriptor >= 0) ::close(descriptor);
    throw Error({.kind = ErrorKind::kFailed,
                 .what = fmt::format("{} bytes of shared memory cannot be had: {}", bytes, why),
                 .fix = "choose a smaller byte budget"});
  }
  return SharedPages({.process = ::getpid(),
                      .descriptor = descriptor,
                      .bytes = bytes,
                      .inode = inode_of(descriptor),
                      .host = this_host()},
                     descriptor, /*writes=*/true);
}

SharedPages SharedPages::open(const SharedAddress& address) {
  if (address.host != this_host()) not_there(address, "it is on another host");
  const std::string path = fmt::format("/proc/{}/fd/{}", address.process, address.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) not_there(address, std::strerror(errno));
  if (inode_of(descriptor) != address.inode) {
    ::close(descriptor);
    not_there(address, "another file is there, as between containers");
  }
  return SharedPages(address, descriptor, /*writes=*/false);
}

SharedPages::SharedPages(SharedAddress address, int descriptor, bool writes)
    : address_(address), descriptor_(descriptor) {
  if (address_.bytes == 0) return;
  const int access = writes ? PROT_READ | PROT_WRITE : PROT_READ;
  void* pages =
      ::mmap(nullptr, static_cast<size_t>(address_.bytes), access, MAP_SHARED, descriptor_, 0);
  if (pages == MAP_FAILED) {
    const std::string why = std::strerror(errno);
    ::close(descriptor_);
    not_there(address_, why);
  }
  pages_ = pages;
}

SharedPages::SharedPages(SharedPages&& other) noexcept
    : address_(other.address_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      pages_(std::exchange(other.pages_, nullptr)) {}

SharedPages::~SharedPages() {
  if (pages_ != nullptr) ::munmap(pages_, static_cast<size_t>(address_.bytes));
  if (descriptor_ >= 0) ::close(descriptor_);
}

at::Tensor SharedPages::bytes() const {
  if (pages_ == nullptr) return at::empty({0}, at::kByte);
  return at::from_blob(pages_, {address_.bytes}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace shardproof
