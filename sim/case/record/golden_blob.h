// The index at the end of a golden's blob: what a reader needs without parsing the JSON header.
//
//   | safetensors header | tensors, widest dtypes first | index (a uint8 tensor, "__index__") |
//   index = entries | metadata | 8 bytes digest of both | 8 bytes length of both | 8 bytes magic
//
// The file stays a plain safetensors file; ranks map it many times a second and read only the
// index.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shardproof::sim {

inline constexpr uint64_t kGoldenMagic = 0x31444c4f47504853;  // "SHPGOLD1"
inline constexpr const char* kGoldenIndexName = "__index__";

// Appends numbers and strings to a byte string, little-endian.
class IndexWriter {
 public:
  template <class Number>
  void put(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void put_text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads them back. Throws Error(kBadInput) when the bytes end early.
class IndexReader {
 public:
  explicit IndexReader(std::string_view bytes) : rest_(bytes) {}
  template <class Number>
  Number take() {
    Number value;
    const std::string_view part = take_bytes(sizeof(value));
    __builtin_memcpy(&value, part.data(), sizeof(value));
    return value;
  }
  std::string take_text() { return std::string(take_bytes(take<uint32_t>())); }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view take_bytes(size_t count);
  std::string_view rest_;
};

// The index's content (without digest, length, magic) of a mapped blob. Throws Error(kBadInput).
std::string_view golden_index(std::string_view blob);
// The same with digest, length and magic appended, as it is stored.
std::string sealed_index(const std::string& content);

}  // namespace shardproof::sim
