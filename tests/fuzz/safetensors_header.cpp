// Tests the safetensors header reader with any bytes.
#include "tensor/safetensors_header.h"

#include <algorithm>

#include "tests/fuzz/promise.h"

namespace shardproof::fuzz {
namespace {

constexpr size_t kSizeBytes = 8;

int64_t data_bytes_of(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = kSizeBytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return static_cast<int64_t>(value >> 1);  // never negative
}

void check_cover(const SafetensorsHeader& header, int64_t data_bytes) {
  int64_t covered = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    promise(entry.begin == covered && entry.end >= entry.begin, "a hole or an overlap");
    covered = entry.end;
    const int64_t element = safetensors_dtype_bytes(entry.dtype);
    promise(element > 0, "an unknown dtype");
    int64_t left = (entry.end - entry.begin) / element;
    for (const int64_t size : entry.shape) {
      promise(size >= 0, "a negative size");
      if (size > 0 && left > 0) left /= size;
    }
    const bool empty = std::count(entry.shape.begin(), entry.shape.end(), 0) > 0;
    promise(empty ? entry.end == entry.begin : left == 1, "a shape that is not its bytes");
  }
  promise(covered == data_bytes, "data behind the last tensor");
}

void check_written(const SafetensorsHeader& header, int64_t data_bytes) {
  const std::string file = safetensors_header_bytes(header.entries, header.metadata);
  const SafetensorsHeader back =
      parse_safetensors_header(std::string_view(file).substr(kSizeBytes), data_bytes, "written");
  promise(back.metadata == header.metadata, "metadata changed");
  const auto same = [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin &&
           a.end == b.end;
  };
  promise(std::equal(header.entries.begin(), header.entries.end(), back.entries.begin(),
                     back.entries.end(), same),
          "a tensor changed");
}

}  // namespace

Ending read_safetensors_header(std::string_view bytes) {
  if (bytes.size() < kSizeBytes) return Ending::kRefused;
  const int64_t data_bytes = data_bytes_of(bytes);
  return value_or_sentence([&] {
    const SafetensorsHeader header =
        parse_safetensors_header(bytes.substr(kSizeBytes), data_bytes, "input.safetensors");
    check_cover(header, data_bytes);
    check_written(header, data_bytes);
  });
}

}  // namespace shardproof::fuzz
