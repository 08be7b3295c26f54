// Text files from outside, read whole.
#include "sim/scenario/read_text.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "base/error.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

constexpr int64_t kMaxJsonBytes = 16 << 20;

[[noreturn]] void bad_file(const std::string& what, const std::string& fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = what, .fix = fix});
}

// Length of the UTF-8 sequence that starts with `lead`; 0: no lead byte. C0, C1 and F5.. are never
// valid.
size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// The second byte rules out overlong forms, surrogates and code points over U+10FFFF.
bool second_byte_fits(unsigned char lead, unsigned char second) {
  if (lead == 0xE0) return second >= 0xA0;
  if (lead == 0xED) return second <= 0x9F;
  if (lead == 0xF0) return second >= 0x90;
  if (lead == 0xF4) return second <= 0x8F;
  return true;
}

bool valid_sequence(std::string_view text, size_t at, size_t length) {
  if (length == 0 || at + length > text.size()) return false;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) return false;
  }
  return length == 1 || second_byte_fits(static_cast<unsigned char>(text[at]),
                                         static_cast<unsigned char>(text[at + 1]));
}

std::pair<int64_t, int64_t> line_and_column(std::string_view text, size_t offset) {
  int64_t line = 1, column = 1;
  for (const char c : text.substr(0, std::min(offset, text.size()))) {
    if (c == '\n') {
      ++line;
      column = 1;
    } else {
      ++column;
    }
  }
  return {line, column};
}

// nlohmann keeps the last of two equal keys; a case that says two things is refused instead.
class DuplicateKeys {
 public:
  bool operator()(int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open_.emplace_back();
    if (event == json::parse_event_t::object_end) open_.pop_back();
    if (event == json::parse_event_t::key &&
        !open_.back().insert(parsed.get<std::string>()).second) {
      if (twice.empty()) twice = parsed.get<std::string>();
    }
    return true;
  }
  std::string twice;

 private:
  std::vector<std::set<std::string>> open_;
};

}  // namespace

size_t invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = sequence_length(static_cast<unsigned char>(text[at]));
    if (!valid_sequence(text, at, length)) return at;
    at += length;
  }
  return std::string_view::npos;
}

std::string read_text_file(const std::string& path, int64_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) bad_file(path + " does not exist", "check the path");
  if (!std::filesystem::is_regular_file(status))
    bad_file(path + " is no regular file", "name a file");
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (bytes > max_bytes) {
    bad_file(fmt::format("{} has {} bytes", path, bytes),
             fmt::format("files of this kind have at most {} bytes", max_bytes));
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream)
    bad_file(fmt::format("{} cannot be read: {}", path, std::strerror(errno)),
             "check its permissions");
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

json read_json_object(const std::string& path) {
  const std::string text = read_text_file(path, kMaxJsonBytes);
  DuplicateKeys keys;
  json parsed;
  try {
    parsed = json::parse(text, std::ref(keys));
  } catch (const json::parse_error& error) {
    const auto [line, column] = line_and_column(text, error.byte == 0 ? 0 : error.byte - 1);
    const std::string full = error.what();
    const auto reason = full.find("syntax error");
    bad_file(fmt::format("{}:{}:{}: this is not JSON{}", path, line, column,
                         reason == std::string::npos ? "" : " (" + full.substr(reason) + ")"),
             "write valid JSON");
  } catch (const json::exception& error) {
    bad_file(fmt::format("{}: this is not JSON ({})", path, error.what()), "write valid JSON");
  }
  if (!parsed.is_object()) {
    bad_file(fmt::format("{} holds a JSON {}", path, parsed.type_name()),
             "it must be an object {...}");
  }
  if (!keys.twice.empty()) {
    bad_file(fmt::format("{} has the key \"{}\" twice in one object", path, keys.twice),
             "keep one");
  }
  return parsed;
}

}  // namespace shardproof::sim
