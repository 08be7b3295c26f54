// Reads text files of other programs: size-limited UTF-8. Each error is a sentence with the file's
// name.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace shardproof::sim {

// Throws Error(kBadInput) for a missing file, a folder, an unreadable file, and over `max_bytes`.
std::string read_text_file(const std::string& path, int64_t max_bytes);

// Reads a JSON object. Throws Error(kBadInput) for invalid JSON (with line and column), another
// value than an object, a repeated key, and nesting of more than 32 levels.
nlohmann::json read_json_object(const std::string& path);
// Parses a text as read_json_object does a file; `name` is for messages.
nlohmann::json parse_json_object(const std::string& name, const std::string& text);

}  // namespace shardproof::sim
