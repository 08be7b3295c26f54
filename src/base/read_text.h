// Reads text files of other programs, and JSON. Each error is a sentence with the file's name.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace shardproof {

// Whether a file of this name can be opened without a wait: a pipe waits for its other end.
bool is_plain_file(const std::string& path);
// Why no regular file of this name can be read, as the rest of a sentence that begins with the
// name: "does not exist", "is a pipe, not a file"; "" for a regular file.
std::string why_no_file(const std::string& path);
// Throws Error(kBadInput) where something else has this name. A missing file passes.
void require_plain_file(const std::string& path);

// Throws Error(kBadInput) for a missing file, a folder, an unreadable file, and over `max_bytes`.
std::string read_text_file(const std::string& path, int64_t max_bytes);

inline constexpr int64_t kMaxJsonBytes = 16 << 20;  // of a file that a person or a model brings

// Reads a JSON object. Throws Error(kBadInput) for invalid JSON and a repeated key (with line and
// column), another value than an object, and nesting of more than 32 levels.
nlohmann::json read_json_object(const std::string& path, int64_t max_bytes = kMaxJsonBytes);
// Parses a text as read_json_object does a file. `name` is for messages: the file, whose line
// `first_line` is the first one of the text.
nlohmann::json parse_json_object(const std::string& name, const std::string& text,
                                 int64_t first_line = 1);
// Throws what read_json_object throws, and keeps nothing of the file.
void check_json_file(const std::string& path, int64_t max_bytes);

// What the library says of a value, without the library's code before it.
std::string json_problem(const nlohmann::json::exception& error);

}  // namespace shardproof
