#include "sim/case/scenario/json_places.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardproof::sim {

JsonPlaces::JsonPlaces(std::string file, const std::string& text) : file_(std::move(file)) {
  try {
    tree_ = parse_yaml(file_, text);
  } catch (const Error&) {  // no places then
  }
}

PlacedError JsonPlaces::error(const std::vector<std::string>& keys, const std::string& what,
                              const std::string& fix, ErrorKind kind) const {
  const YamlNode* node = &tree_;
  int64_t line = tree_.line, column = tree_.column;
  for (const std::string& key : keys) {
    const auto found = std::find_if(node->entries.begin(), node->entries.end(),
                                    [&key](const YamlEntry& entry) { return entry.key == key; });
    if (found == node->entries.end()) break;
    line = found->line;
    column = found->column;
    node = &found->value;
  }
  const std::string place = line == 0 ? file_ : fmt::format("{}:{}:{}", file_, line, column);
  return PlacedError({.kind = kind, .what = place + ": " + what, .fix = fix}, line, column);
}

}  // namespace shardproof::sim
