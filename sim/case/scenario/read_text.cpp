#include "sim/case/scenario/read_text.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

constexpr int64_t kMaxJsonBytes = 16 << 20;
constexpr int kMaxJsonDepth = 32;
constexpr size_t kMaxReason = 200;  // bytes of a message that come from the file

[[noreturn]] void bad_file(const std::string& what, const std::string& fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = what, .fix = fix});
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

// Refuses what nlohmann accepts and a case must not have: a repeated key (nlohmann keeps the last),
// and nesting so deep that copying or printing the value overflows the stack.
class StructureCheck {
 public:
  explicit StructureCheck(const std::string& name) : name_(name) {}
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxJsonDepth) {
      bad_file(fmt::format("{} is nested more than {} deep", name_, kMaxJsonDepth),
               "write it as Hugging Face does");
    }
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
  const std::string& name_;
  std::vector<std::set<std::string>> open_;
};

}  // namespace

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
  return parse_json_object(path, read_text_file(path, kMaxJsonBytes));
}

json parse_json_object(const std::string& name, const std::string& text) {
  StructureCheck check(name);
  json parsed;
  try {
    parsed = json::parse(text, std::ref(check));
  } catch (const json::parse_error& error) {
    const auto [line, column] = line_and_column(text, error.byte == 0 ? 0 : error.byte - 1);
    const std::string full = error.what();
    const auto reason = full.find("syntax error");
    bad_file(fmt::format("{}:{}:{}: this is not JSON{}", name, line, column,
                         reason == std::string::npos
                             ? ""
                             : " (" + printable(full.substr(reason), kMaxReason) + ")"),
             "write valid JSON");
  } catch (const json::exception& error) {
    bad_file(fmt::format("{}: this is not JSON ({})", name, printable(error.what(), kMaxReason)),
             "write valid JSON");
  }
  if (!parsed.is_object()) {
    bad_file(fmt::format("{} holds a JSON {}", name, parsed.type_name()),
             "it must be an object {...}");
  }
  if (!check.twice.empty()) {
    bad_file(fmt::format("{} has the key \"{}\" twice in one object", name,
                         printable(check.twice, kMaxReason)),
             "keep one");
  }
  return parsed;
}

}  // namespace shardproof::sim
