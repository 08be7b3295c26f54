#include "sim/case/scenario/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "base/utf8.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

constexpr size_t kMaxDepth = 32;
constexpr int64_t kMaxNodes = 200000;
constexpr size_t kMaxKeys = 1000;  // of one map
constexpr size_t kMaxFact = 800;   // bytes of a message, which may quote the file

// Builds the tree from yaml-cpp's events. A map's children arrive as key, value, key, value.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& file) : file_(file) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { place(node(mark)); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_anchor(mark); }
  void OnAnchor(const YAML::Mark& mark, const std::string&) override { refuse_anchor(mark); }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    YamlNode scalar = node(mark);
    scalar.kind = YamlNode::Kind::kScalar;
    scalar.text = value;
    scalar.quoted = tag == "!";
    if (tag != "!" && tag != "?" && !tag.empty()) refuse_tag(mark, tag);
    place(std::move(scalar));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, YamlNode::Kind::kList);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

  YamlNode take() { return std::move(root_); }

 private:
  struct Open {
    YamlNode node;
    bool key_pending = false;  // a map whose last entry has no value yet
  };

  YamlNode node(const YAML::Mark& mark) {
    if (++count_ > kMaxNodes) {
      fail(mark, fmt::format("the file has more than {} values", kMaxNodes), "split it");
    }
    YamlNode made;
    made.line = mark.line + 1;
    made.column = mark.column + 1;
    return made;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YamlNode::Kind kind) {
    if (tag != "?" && tag != "!" && !tag.empty()) refuse_tag(mark, tag);
    if (open_.size() >= kMaxDepth) {
      fail(mark, fmt::format("nested more than {} deep", kMaxDepth), "a scenario needs 5 levels");
    }
    Open opened;
    opened.node = node(mark);
    opened.node.kind = kind;
    open_.push_back(std::move(opened));
  }

  void close() {
    YamlNode done = std::move(open_.back().node);
    open_.pop_back();
    place(std::move(done));
  }

  void place(YamlNode child) {
    if (open_.empty()) {
      root_ = std::move(child);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == YamlNode::Kind::kList) {
      parent.node.items.push_back(std::move(child));
    } else if (parent.key_pending) {
      parent.node.entries.back().value = std::move(child);
      parent.key_pending = false;
    } else {
      place_key(parent, child);
    }
  }

  void place_key(Open& parent, const YamlNode& key) {
    if (key.kind != YamlNode::Kind::kScalar) {
      fail_at(file_, key.line, key.column, "a key must be text, not " + key.describe(),
              "name the key");
    }
    if (parent.node.entries.size() >= kMaxKeys) {
      fail_at(file_, key.line, key.column, fmt::format("a map of more than {} keys", kMaxKeys),
              "split it");
    }
    for (const YamlEntry& entry : parent.node.entries) {
      if (entry.key != key.text) continue;
      fail_at(file_, key.line, key.column,
              fmt::format("the key '{}' was given before, in line {}", key.text, entry.line),
              "keep one");
    }
    parent.node.entries.push_back({key.text, key.line, key.column, {}});
    parent.key_pending = true;
  }

  [[noreturn]] void refuse_anchor(const YAML::Mark& mark) {
    fail(mark, "anchors (&name, *name) are not used in scenario files",
         "write the value, or use matrix");
  }
  [[noreturn]] void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    fail(mark, fmt::format("tags ({}) are not used in scenario files", tag), "remove it");
  }
  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& what, const std::string& fix) {
    fail_at(file_, mark.line + 1, mark.column + 1, what, fix);
  }

  std::string file_;
  std::vector<Open> open_;
  YamlNode root_;
  int64_t count_ = 0;
};

void require_plain_utf8(const std::string& file, const std::string& text) {
  const size_t bad = invalid_utf8(text);
  const size_t zero = text.find('\0');
  const size_t at = std::min(bad, zero);
  if (at == std::string::npos) return;
  const auto begin = text.begin();
  const auto line = 1 + std::count(begin, begin + static_cast<ptrdiff_t>(at), '\n');
  const size_t line_start = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
  const size_t column = at - (line_start == std::string::npos ? 0 : line_start + 1) + 1;
  fail_at(file, line, static_cast<int64_t>(column),
          fmt::format("byte 0x{:02x} is not UTF-8 text", static_cast<unsigned char>(text[at])),
          "save the file as UTF-8");
}

// Replaces yaml-cpp's message for a tab, which is about tokens.
void require_no_tab_indent(const std::string& file, const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    const size_t first = line.find_first_not_of(' ');
    if (first != std::string::npos && line[first] == '\t') {
      fail_at(file, number, static_cast<int64_t>(first) + 1, "a tab indents this line",
              "YAML is indented with spaces");
    }
  }
}

bool parse_integer(std::string_view text, int64_t& value) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('-')) return false;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// "1", "-2.5", "1e-3", ".5", ".inf", ".nan"; not "0x10", "infinity", "1_000".
bool parse_number(std::string_view text, double& value) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.starts_with('-') || text.starts_with('+')) return false;
  if (text == ".nan" || text == ".NaN" || text == ".NAN") {
    value = std::numeric_limits<double>::quiet_NaN();
    return true;
  }
  if (text == ".inf" || text == ".Inf" || text == ".INF") {
    value = std::numeric_limits<double>::infinity();
  } else {
    if (text.find_first_not_of("0123456789.eE+-") != std::string_view::npos) return false;
    if (text.find_first_of("0123456789") == std::string_view::npos) return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (end != text.data() + text.size()) return false;
    if (error == std::errc::result_out_of_range)
      value = std::numeric_limits<double>::infinity();
    else if (error != std::errc())
      return false;
  }
  if (negative) value = -value;
  return true;
}

json plain_value(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL")
    return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  int64_t integer = 0;
  if (parse_integer(text, integer)) return integer;
  double number = 0;
  if (parse_number(text, number)) return number;
  return text;
}

// The last scalar of a tree.
const YamlNode* last_scalar(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kList && !node.items.empty())
    return last_scalar(node.items.back());
  if (node.kind == YamlNode::Kind::kMap && !node.entries.empty())
    return last_scalar(node.entries.back().value);
  return node.kind == YamlNode::Kind::kScalar ? &node : nullptr;
}

// yaml-cpp reads a quoted text that is not closed to the end of the file, and takes it. A mark of a
// document behind it is an error within quotes alone.
void require_closed_quotes(const std::string& file, const std::string& text, const YamlNode& root) {
  const YamlNode* last = last_scalar(root);
  if (last == nullptr || !last->quoted) return;
  std::istringstream stream(text + "\n---\n");
  TreeBuilder ignored(file);
  try {
    YAML::Parser(stream).HandleNextDocument(ignored);
  } catch (const YAML::Exception&) {
    fail_at(file, last->line, last->column, "the quote that opens here is not closed",
            "close it, on this line if it is one word");
  }
}

}  // namespace

void fail_at(const std::string& file, int64_t line, int64_t column, const std::string& what,
             const std::string& fix) {
  throw PlacedError(
      {.kind = ErrorKind::kBadInput,
       .what = fmt::format("{}:{}:{}: {}", file, line, column, printable(what, kMaxFact)),
       .fix = printable(fix, kMaxFact)},
      line, column);
}

const YamlNode* YamlNode::find(const std::string& key) const {
  for (const YamlEntry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

json YamlNode::value() const {
  if (kind == Kind::kNull) return nullptr;
  if (kind == Kind::kScalar) return quoted ? json(text) : plain_value(text);
  if (kind == Kind::kList) {
    json array = json::array();
    for (const YamlNode& item : items) array.push_back(item.value());
    return array;
  }
  json object = json::object();
  for (const YamlEntry& entry : entries) object[entry.key] = entry.value.value();
  return object;
}

std::string YamlNode::describe() const {
  if (kind == Kind::kList) return "a list";
  if (kind == Kind::kMap) return "a map";
  const json read = value();
  if (read.is_null()) return "nothing";
  const std::string shown = printable(text, 60);
  return read.is_string() ? fmt::format("the text '{}'", shown) : shown;
}

YamlNode parse_yaml(const std::string& file, const std::string& given) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  std::string text = given;
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  require_plain_utf8(file, text);
  require_no_tab_indent(file, text);
  std::istringstream stream(text);
  TreeBuilder builder(file);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder))
      fail_at(file, 1, 1, "the file is empty", "write `key: value` lines");
    YamlNode root = builder.take();
    TreeBuilder second(file);
    if (parser.HandleNextDocument(second)) {
      const YamlNode extra = second.take();
      fail_at(file, std::max<int64_t>(extra.line, 1), std::max<int64_t>(extra.column, 1),
              "a second document starts here", "one scenario file is one document; use matrix");
    }
    require_closed_quotes(file, text, root);
    return root;
  } catch (const YAML::Exception& error) {
    const int64_t line = error.mark.is_null() ? 1 : error.mark.line + 1;
    const int64_t column = error.mark.is_null() ? 1 : error.mark.column + 1;
    fail_at(file, line, column, "this is not YAML (" + error.msg + ")", "mend the syntax");
  }
}

}  // namespace shardproof::sim
