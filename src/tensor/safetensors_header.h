// Parses the header of a safetensors file, checks it against the size of the data, and writes it.
// It uses no tensors, so that it can be fuzzed alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace shardproof {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as in the file: "F64", "BF16", "BOOL", ...
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes from the start of the data
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in order of their data
  std::map<std::string, std::string> metadata;
};

constexpr int64_t kMaxSafetensorsHeader = 100'000'000;
constexpr int64_t kMaxSafetensorsDims = 32;

// Bytes per element; 0 for an unknown name.
int64_t safetensors_dtype_bytes(std::string_view dtype);

// `text` is the JSON and `data_bytes` the number of bytes after it. Throws Error(kBadInput) whose
// fact starts with `file_name`; SafetensorsFile::open lists the checks.
SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_bytes,
                                           const std::string& file_name);

// The first bytes of a file with these entries: the length, then the JSON, padded with spaces so
// that the data starts at a multiple of 8.
std::string safetensors_header_bytes(const std::vector<SafetensorsEntry>& entries,
                                     const std::map<std::string, std::string>& metadata);

}  // namespace shardproof
