// Maps a safetensors file and returns views that keep the mapping alive.
#include "tensor/safetensors_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/count_of.h"
#include "base/error.h"
#include "base/mapped_pages.h"
#include "tensor/safetensors_dtype.h"
#include "tensor/safetensors_header.h"

namespace shardproof {
namespace {

constexpr int64_t kLengthBytes = 8;

[[noreturn]] void bad_file(const std::string& name, const std::string& what, std::string fix) {
  throw_bad_input(fmt::format("{}: {}", name, what), std::move(fix));
}

int64_t file_bytes(int fd, const std::string& name) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    bad_file(name, fmt::format("cannot be read: {}", std::strerror(errno)), "check the path");
  }
  if (!S_ISREG(status.st_mode)) {
    bad_file(name, S_ISDIR(status.st_mode) ? "is a directory" : "is not a regular file",
             "give a safetensors file");
  }
  return status.st_size;
}

uint64_t little_endian(const char* bytes) {
  uint64_t value = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

int64_t read_header_bytes(const char* data, int64_t bytes, const std::string& name) {
  const uint64_t length = little_endian(data);
  const auto room = static_cast<uint64_t>(bytes - kLengthBytes);
  if (length > room) {
    bad_file(name,
             fmt::format("the header is said to be {} bytes long, the file has {}", length, bytes),
             "it is truncated or not a safetensors file: copy or write it again");
  }
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    bad_file(
        name,
        fmt::format("a header of {} bytes is over the limit of {}", length, kMaxSafetensorsHeader),
        "split the file");
  }
  return static_cast<int64_t>(length);
}

void check_booleans(const char* data, const SafetensorsEntry& entry, const std::string& name) {
  for (int64_t i = 0; i < entry.end - entry.begin; ++i) {
    const auto byte = static_cast<uint8_t>(data[i]);
    if (byte > 1) {
      bad_file(name, fmt::format("BOOL tensor '{}' holds the byte {} at {}", entry.name, byte, i),
               "write 0 or 1");
    }
  }
}

TensorView tensor_at(const std::shared_ptr<const MappedPages>& mapping, const char* data,
                     const SafetensorsEntry& entry, const std::string& name) {
  const Dtype dtype = *dtype_of_safetensors(entry.dtype);
  if (dtype == Dtype::kBool) check_booleans(data, entry, name);
  const auto bytes = static_cast<size_t>(entry.end - entry.begin);
  const auto width = static_cast<size_t>(element_bytes(dtype));
  if (bytes > 0 && reinterpret_cast<uintptr_t>(data) % width == 0) {
    return {std::shared_ptr<const void>(mapping, data), dtype, entry.shape};
  }
  const auto copy = std::make_shared<std::vector<double>>(bytes / sizeof(double) + 1);
  std::memcpy(copy->data(), data, bytes);
  return {std::shared_ptr<const void>(copy, copy->data()), dtype, entry.shape};
}

}  // namespace

SafetensorsReader SafetensorsReader::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const OwnedFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    bad_file(path, fmt::format("cannot be opened: {}", std::strerror(errno)), "check the path");
  }
  return from_fd(file.get(), path);
}

SafetensorsReader SafetensorsReader::from_fd(int fd, const std::string& name_for_errors) {
  const std::string& name = name_for_errors;
  const int64_t bytes = file_bytes(fd, name);
  if (bytes < kLengthBytes) {
    bad_file(name, fmt::format("{} bytes are too few for a safetensors file", bytes),
             "it is truncated: copy or write it again");
  }
  const auto mapping = std::make_shared<const MappedPages>(fd, static_cast<size_t>(bytes), false);
  const auto* start = static_cast<const char*>(mapping->data());
  if (start == nullptr) {
    bad_file(name, fmt::format("cannot map {} bytes: {}", bytes, std::strerror(errno)),
             "check the file system that it is on");
  }
  const int64_t length = read_header_bytes(start, bytes, name);
  const char* data = start + kLengthBytes + length;
  auto header = parse_safetensors_header({start + kLengthBytes, static_cast<size_t>(length)},
                                         bytes - kLengthBytes - length, name);
  SafetensorsReader file;
  file.path_ = name;
  file.metadata_ = std::move(header.metadata);
  for (const auto& entry : header.entries) {
    file.names_.push_back(entry.name);
    file.tensors_.emplace(entry.name, tensor_at(mapping, data + entry.begin, entry, name));
  }
  return file;
}

const TensorView& SafetensorsReader::view(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it != tensors_.end()) return it->second;
  const std::string near = nearest_name(name, names_);
  bad_file(path_, fmt::format("has no tensor '{}'", name),
           near.empty() ? "it holds " + count_of(std::ssize(names_), "tensor")
                        : fmt::format("the nearest name in it is '{}'", near));
}

}  // namespace shardproof
