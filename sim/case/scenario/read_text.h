// Text files from outside, read whole: size-limited, UTF-8, each failure a sentence with the file's
// name.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace shardproof::sim {

// Throws Error(kBadInput): missing, a folder, unreadable, over `max_bytes`.
std::string read_text_file(const std::string& path, int64_t max_bytes);

// A JSON object. Throws Error(kBadInput): not JSON (with line and column), not an object, a key
// twice, nested more than 32 deep.
nlohmann::json read_json_object(const std::string& path);
// The same of a text; `name` is for messages.
nlohmann::json parse_json_object(const std::string& name, const std::string& text);

}  // namespace shardproof::sim
