#include "base/read_text.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/shortage.h"
#include "base/utf8.h"

namespace shardproof {

using nlohmann::json;

namespace {

constexpr int kMaxJsonDepth = 32;
constexpr size_t kMaxReason = 200;  // bytes of a message that come from the file
constexpr const char* kAbsent = "does not exist";

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

// The offset of the first quote of the string that ends before `end`.
size_t string_begin(const std::string& text, size_t end) {
  size_t quote = text.rfind('"', end - 2);
  while (text[quote - 1] == '\\') quote = text.rfind('"', quote - 1);
  return quote;
}

// Refuses what nlohmann accepts and a file must not have: a repeated key (nlohmann keeps the last),
// and nesting so deep that copying or printing the value overflows the stack.
class StrictParser {
 public:
  StrictParser(const std::string& name, const std::string& text, int64_t first_line)
      : name_(name), text_(text), first_line_(first_line), stream_(text) {}

  // Without `keep` it only checks, and returns an empty value.
  json parse(bool keep) {
    return json::parse(stream_, [this, keep](int depth, json::parse_event_t event, json& parsed) {
      if (depth > kMaxJsonDepth) {
        throw_bad_input(
            fmt::format("{}:{} is nested more than {} deep", name_, first_line_, kMaxJsonDepth),
            "write flatter JSON");
      }
      if (event == json::parse_event_t::object_start) keys_[depth + 1].clear();
      if (event == json::parse_event_t::key) note_key(keys_[depth], parsed.get<std::string>());
      return keep;
    });
  }

  // "file:line:column" of a byte of the text.
  std::string place(size_t offset) const {
    const auto [line, column] = line_and_column(text_, offset);
    return fmt::format("{}:{}:{}", name_, first_line_ + line - 1, column);
  }

 private:
  // The stream stands behind the key.
  void note_key(std::set<std::string>& keys, const std::string& key) {
    if (keys.insert(key).second) return;
    const auto end = stream_.rdbuf()->pubseekoff(0, std::ios::cur, std::ios::in);
    throw_bad_input(fmt::format("{}: the key \"{}\" stands twice in one object",
                                place(string_begin(text_, static_cast<size_t>(end))),
                                printable(key, kMaxReason)),
                    "keep one");
  }

  const std::string &name_, &text_;
  int64_t first_line_;
  std::istringstream stream_;
  std::map<int, std::set<std::string>> keys_;  // by depth, of the object that is open there
};

}  // namespace

bool is_plain_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

std::string why_no_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  switch (fs::status(path, error).type()) {
    case fs::file_type::regular:
      return "";
    case fs::file_type::not_found:
      if (!fs::is_symlink(fs::symlink_status(path, error))) return kAbsent;
      return "is a link to nowhere, not a file";
    case fs::file_type::directory:
      return "is a folder, not a file";
    case fs::file_type::fifo:
      return "is a pipe, not a file";
    case fs::file_type::socket:
      return "is a socket, not a file";
    case fs::file_type::none:
      return "cannot be looked at: " + error.message();
    default:
      return "is a device, not a file";
  }
}

void require_plain_file(const std::string& path) {
  const std::string why = why_no_file(path);
  if (!why.empty() && why != kAbsent) throw_bad_input(path + " " + why, "name a file");
}

std::string read_text_file(const std::string& path, int64_t max_bytes) {
  if (const std::string why = why_no_file(path); !why.empty()) {
    throw_bad_input(path + " " + why, why == kAbsent ? "check the path" : "name a file");
  }
  std::error_code error;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (bytes > max_bytes) {
    throw_bad_input(fmt::format("{} has {} bytes", path, bytes),
                    fmt::format("files of this kind have at most {} bytes", max_bytes));
  }
  const auto refuse = [&path](const std::string& why, const std::string& fix) {
    throw_bad_input(fmt::format("{} cannot be read: {}", path, why), fix);
  };
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    throw_if_too_many_files(path + " cannot be read", errno);
    refuse(std::strerror(errno), "check its permissions");
  }
  try {
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  } catch (const std::ios_base::failure&) {  // the system opened it and refuses its bytes
    refuse(std::strerror(errno), "check the disk, or name another file");
  }
  return "";
}

json read_json_object(const std::string& path, int64_t max_bytes) {
  return parse_json_object(path, read_text_file(path, max_bytes));
}

namespace {

json parse_strictly(const std::string& name, const std::string& text, int64_t first_line,
                    bool keep) {
  StrictParser parser(name, text, first_line);
  try {
    return parser.parse(keep);
  } catch (const json::parse_error& error) {
    const std::string full = error.what();
    const auto reason = full.find("syntax error");
    throw_bad_input(
        fmt::format("{}: this is not JSON{}", parser.place(error.byte == 0 ? 0 : error.byte - 1),
                    reason == std::string::npos
                        ? ""
                        : " (" + printable(full.substr(reason), kMaxReason) + ")"),
        "write valid JSON");
  } catch (const json::exception& error) {
    throw_bad_input(
        fmt::format("{}: this is not JSON ({})", name, printable(json_problem(error), kMaxReason)),
        "write valid JSON");
  }
}

}  // namespace

json parse_json_object(const std::string& name, const std::string& text, int64_t first_line) {
  json parsed = parse_strictly(name, text, first_line, /*keep=*/true);
  if (!parsed.is_object()) {
    throw_bad_input(fmt::format("{} holds a JSON {}", name, parsed.type_name()),
                    "it must be an object {...}");
  }
  return parsed;
}

void check_json_file(const std::string& path, int64_t max_bytes) {
  parse_strictly(path, read_text_file(path, max_bytes), 1, /*keep=*/false);
}

std::string json_problem(const json::exception& error) {
  const std::string text = error.what();  // "[json.exception.type_error.302] type must be .."
  const size_t end = text.starts_with("[json.exception.") ? text.find("] ") : text.npos;
  return end == text.npos ? text : text.substr(end + 2);
}

}  // namespace shardproof
