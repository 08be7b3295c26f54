// A file descriptor that closes itself.
#pragma once

extern "C" {  // glibc 2.36 forgets it
#include <sys/pidfd.h>
}

#include <unistd.h>

#include <utility>

namespace shardproof::sim::world {

class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

// A descriptor of a process, readable once the process has ended.

// Invalid where there is no such process, and on kernels before 5.3. A child that is not reaped yet
// keeps its number.
inline OwnedFd pidfd_of(pid_t process) { return OwnedFd(::pidfd_open(process, 0)); }

}  // namespace shardproof::sim::world
