// A YAML file as a tree in which every node has its line and column. It is stricter than YAML: one
// document, no anchors, no tags, no repeated keys, limited depth and size.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"

namespace shardproof::sim {

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string text = {};             // kScalar
  bool quoted = false;               // kScalar: text even if it looks like a number
  int64_t line = 0, column = 0;      // from 1
  std::vector<YamlNode> items = {};  // kList
  std::vector<YamlEntry> entries;    // kMap, in the order of the file

  const YamlNode* find(const std::string& key) const;  // null: no such key, or no map
  // "a list", "a map", "text", "an integer", "a number", "true or false", "nothing"
  std::string describe() const;
  // The value by YAML's core rules: null, bool, integer, number, text, array, object.
  nlohmann::json value() const;
};

struct YamlEntry {
  std::string key;
  int64_t line = 0, column = 0;  // of the key
  YamlNode value;
};

// `file` is for messages. Throws Error(kBadInput), "file:line:column: ...".
YamlNode parse_yaml(const std::string& file, const std::string& text);

// An error about one position in a file.
struct PlacedError : Error {
  PlacedError(Parts parts, int64_t line, int64_t column)
      : Error(std::move(parts)), line(line), column(column) {}
  int64_t line, column;  // from 1
};

// Throws PlacedError(kBadInput).
[[noreturn]] void fail_at(const std::string& file, int64_t line, int64_t column,
                          const std::string& what, const std::string& fix);

}  // namespace shardproof::sim
