// Writes tensors as a safetensors file, the widest dtypes first, so that all data is aligned.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <set>

#include "base/error.h"
#include "tensor/aten_view.h"
#include "tensor/safetensors.h"
#include "tensor/safetensors_dtype.h"
#include "tensor/safetensors_header.h"

namespace shardproof {
namespace {

using Metadata = std::map<std::string, std::string>;

[[noreturn]] void cannot_write(const std::string& name, const std::string& why) {
  throw_bad_input(fmt::format("cannot write {}: {}", name, why),
                  "check that the folder exists, is writable and has space");
}

int64_t data_bytes(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

NamedTensors in_file_order(const NamedTensors& tensors) {
  NamedTensors ordered = tensors;
  std::set<std::string> names;
  for (const auto& [name, tensor] : ordered) {
    SHARDPROOF_ASSERT(tensor.defined(), "writing the undefined tensor " + name);
    SHARDPROOF_ASSERT(name != "__metadata__" && names.insert(name).second,
                      "writing two tensors named " + name);
    if (!safetensors_name_of(dtype_of(tensor.scalar_type()))) {
      throw_bad_input(fmt::format("tensor '{}' has dtype {}, which safetensors files do not hold",
                                  name, c10::toString(tensor.scalar_type())),
                      "convert it first");
    }
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return a.second.element_size() > b.second.element_size();
  });
  return ordered;
}

std::string header_bytes(const NamedTensors& tensors, const Metadata& metadata) {
  std::vector<SafetensorsEntry> entries;
  int64_t begin = 0;
  for (const auto& [name, tensor] : tensors) {
    const int64_t end = begin + data_bytes(tensor);
    entries.push_back({name, *safetensors_name_of(dtype_of(tensor.scalar_type())),
                       tensor.sizes().vec(), begin, end});
    begin = end;
  }
  return safetensors_header_bytes(entries, metadata);
}

void write_all(int fd, const char* data, int64_t count, int64_t offset, const std::string& name) {
  while (count > 0) {
    const ssize_t written = ::pwrite(fd, data, static_cast<size_t>(count), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) cannot_write(name, std::strerror(errno));
    data += written;
    offset += written;
    count -= written;
  }
}

void write_file(int fd, const NamedTensors& tensors, const Metadata& metadata,
                const std::string& name) {
  const NamedTensors ordered = in_file_order(tensors);
  const std::string header = header_bytes(ordered, metadata);
  int64_t end = static_cast<int64_t>(header.size());
  for (const auto& [tensor_name, tensor] : ordered) end += data_bytes(tensor);
  if (::ftruncate(fd, end) != 0) cannot_write(name, std::strerror(errno));
  write_all(fd, header.data(), static_cast<int64_t>(header.size()), 0, name);
  int64_t offset = static_cast<int64_t>(header.size());
  for (const auto& [tensor_name, tensor] : ordered) {
    const at::Tensor plain = tensor.detach().cpu().contiguous();
    write_all(fd, static_cast<const char*>(plain.const_data_ptr()), data_bytes(plain), offset,
              name);
    offset += data_bytes(plain);
  }
}

// A new file beside `path`, which is renamed to it, or removed after a failure.
class ReplacingFile {
 public:
  explicit ReplacingFile(const std::string& path)
      : path_(path), temporary_(fmt::format("{}.{:08x}.part", path, std::random_device{}())) {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) cannot_write(path, std::strerror(errno));
  }
  ~ReplacingFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }
  ReplacingFile(const ReplacingFile&) = delete;
  ReplacingFile& operator=(const ReplacingFile&) = delete;

  int fd() const { return fd_; }

  void commit() {
    const int closed = ::close(std::exchange(fd_, -1));
    if (closed != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
      cannot_write(path_, std::strerror(errno));
    }
    temporary_.clear();
  }

 private:
  std::string path_, temporary_;
  int fd_ = -1;
};

}  // namespace

void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const Metadata& metadata) {
  ReplacingFile file(path);
  write_file(file.fd(), tensors, metadata, path);
  file.commit();
}

void write_safetensors_fd(int fd, const NamedTensors& tensors, const Metadata& metadata) {
  write_file(fd, tensors, metadata, fmt::format("descriptor {}", fd));
}

}  // namespace shardproof
