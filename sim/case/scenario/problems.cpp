#include "sim/case/scenario/problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace shardproof::sim {

namespace {

bool is_at(const PlacedError& error, int64_t line, int64_t column) {
  return error.line == line && error.column == column;
}

bool holds(const PlacedError& error, const YamlNode& node) {
  if (is_at(error, node.line, node.column)) return true;
  const auto in_entry = [&](const YamlEntry& entry) {
    return is_at(error, entry.line, entry.column) || holds(error, entry.value);
  };
  return std::ranges::any_of(node.entries, in_entry) ||
         std::ranges::any_of(node.items, [&](const YamlNode& item) { return holds(error, item); });
}

// Removes the node that the error names: an item of a list as a whole, else the key. Returns
// whether it was found.
bool remove(const PlacedError& error, YamlNode& node, bool is_top) {
  for (size_t i = 0; i < node.items.size(); ++i) {
    if (!holds(error, node.items[i])) continue;
    node.items.erase(node.items.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  }
  for (size_t i = 0; i < node.entries.size(); ++i) {
    YamlEntry& entry = node.entries[i];
    // A map has the position of its first key.
    const bool is_map = entry.value.kind == YamlNode::Kind::kMap;
    const bool names_key = is_at(error, entry.line, entry.column) ||
                           (!is_map && is_at(error, entry.value.line, entry.value.column));
    if (!names_key && !holds(error, entry.value)) continue;
    const bool whole = names_key || (is_top && entry.key == "skip");
    if (!whole && remove(error, entry.value, false) && !entry.value.items.empty()) return true;
    if (!whole && entry.value.kind == YamlNode::Kind::kMap) return true;
    node.entries.erase(node.entries.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  }
  return false;
}

auto place(const PlacedError& error) { return std::tuple(error.line, error.column); }

}  // namespace

std::vector<PlacedError> problems_of(YamlNode root,
                                     const std::function<void(const YamlNode& root)>& read) {
  std::vector<PlacedError> problems;
  while (problems.size() < kMaxProblems) {
    try {
      read(root);
      break;
    } catch (const PlacedError& error) {
      problems.push_back(error);
      if (!remove(error, root, true)) break;
    }
  }
  return problems;
}

void throw_all(std::vector<PlacedError> problems) {
  if (problems.empty()) return;
  std::ranges::stable_sort(problems,
                           [](const auto& a, const auto& b) { return place(a) < place(b); });
  const auto same = [](const PlacedError& a, const PlacedError& b) {
    return std::string(a.what()) == b.what();
  };
  problems.erase(std::unique(problems.begin(), problems.end(), same), problems.end());
  const bool more = problems.size() >= kMaxProblems;
  if (more) problems.resize(kMaxProblems, problems.front());
  std::string text;
  for (size_t i = 0; i + 1 < problems.size(); ++i) text += std::string(problems[i].what()) + "\n";
  const PlacedError& last = problems.back();
  const bool refused = std::ranges::all_of(
      problems, [](const auto& problem) { return problem.kind() == ErrorKind::kRefused; });
  throw PlacedError({.kind = refused ? ErrorKind::kRefused : ErrorKind::kBadInput,
                     .what = text + last.fact(),
                     .fix = last.fix() + (more ? "\nthere may be more errors after these" : "")},
                    problems.front().line, problems.front().column);
}

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
    const auto found = std::ranges::find(node->entries, key, &YamlEntry::key);
    if (found == node->entries.end()) break;
    line = found->line;
    column = found->column;
    node = &found->value;
  }
  const std::string place = line == 0 ? file_ : fmt::format("{}:{}:{}", file_, line, column);
  return PlacedError({.kind = kind, .what = place + ": " + what, .fix = fix}, line, column);
}

}  // namespace shardproof::sim
