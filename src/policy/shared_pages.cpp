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
  OwnedFd descriptor(::memfd_create("shardproof weights", MFD_CLOEXEC));
  if (!descriptor.valid() || ::ftruncate(descriptor.get(), bytes) != 0) {
    throw_failed(
        fmt::format("{} bytes of shared memory cannot be had: {}", bytes, std::strerror(errno)),
        "choose a smaller byte budget");
  }
  const SharedAddress address{.process = ::getpid(),
                              .descriptor = descriptor.get(),
                              .bytes = bytes,
                              .inode = inode_of(descriptor.get()),
                              .host = this_host()};
  return SharedPages(address, std::move(descriptor), /*writes=*/true);
}

SharedPages SharedPages::open(const SharedAddress& address) {
  if (address.host != this_host()) not_there(address, "it is on another host");
  const std::string path = fmt::format("/proc/{}/fd/{}", address.process, address.descriptor);
  OwnedFd descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!descriptor.valid()) not_there(address, std::strerror(errno));
  if (inode_of(descriptor.get()) != address.inode) {
    not_there(address, "another file is there, as between containers");
  }
  return SharedPages(address, std::move(descriptor), /*writes=*/false);
}

SharedPages::SharedPages(SharedAddress address, OwnedFd descriptor, bool writes)
    : address_(address), descriptor_(std::move(descriptor)) {
  if (address_.bytes == 0) return;
  pages_ = MappedPages(descriptor_.get(), static_cast<size_t>(address_.bytes), writes);
  if (pages_.data() == nullptr) not_there(address_, std::strerror(errno));
}

at::Tensor SharedPages::bytes() const {
  if (pages_.data() == nullptr) return at::empty({0}, at::kByte);
  return at::from_blob(pages_.data(), {address_.bytes}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace shardproof
