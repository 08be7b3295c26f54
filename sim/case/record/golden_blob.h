// The index at the end of a golden's blob, from which a reader needs not parse the JSON header.
//
//   | safetensors header | tensors, widest dtypes first | index (a uint8 tensor, "__index__") |
//   index = entries | metadata | 8 bytes digest of both | 8 bytes length of both | 8 bytes magic
//
// The file is a plain safetensors file. Ranks map it many times a second and read only the index.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardproof::sim {

inline constexpr uint64_t kGoldenMagic = 0x32444c4f47504853;  // "SHPGOLD2"
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
  void put_list(const std::vector<int64_t>& list) {
    put(static_cast<uint32_t>(list.size()));
    for (const int64_t one : list) put(one);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads what an IndexWriter wrote. Throws Error(kBadInput) when the bytes end early.
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
  std::vector<int64_t> take_list() {
    std::vector<int64_t> list(take<uint32_t>());
    for (int64_t& one : list) one = take<int64_t>();
    return list;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view take_bytes(size_t count);
  std::string_view rest_;
};

// The content of a mapped blob's index, without digest, length and magic. Throws Error(kBadInput).
std::string_view golden_index(std::string_view blob);
// The content as it is stored, with digest, length and magic appended.
std::string sealed_index(const std::string& content);

}  // namespace shardproof::sim
