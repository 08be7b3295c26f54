// Text files from outside, read whole: size-limited, UTF-8, each failure a sentence with the file's
// name.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace shardproof::sim {

// Throws Error(kBadInput): missing, a folder, unreadable, over `max_bytes`.
std::string read_text_file(const std::string& path, int64_t max_bytes);

// Offset of the first byte that is no valid UTF-8, or npos.
size_t invalid_utf8(std::string_view text);

// A JSON object. Throws Error(kBadInput): not JSON (with line and column), not an object, a key
// twice.
nlohmann::json read_json_object(const std::string& path);

}  // namespace shardproof::sim
