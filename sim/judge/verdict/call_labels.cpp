#include "sim/judge/verdict/call_labels.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace shardproof::sim::judge {
namespace {

constexpr size_t kShownLabels = 8;

// The fewest insertions, deletions and replacements that make `wanted` a piece of `text`.
size_t distance_to_piece(const std::string& wanted, const std::string& text) {
  std::vector<size_t> row(text.size() + 1, 0);  // a piece may begin anywhere
  for (size_t i = 0; i < wanted.size(); ++i) {
    size_t before = row[0];  // of the row above, one letter to the left
    row[0] = i + 1;
    for (size_t j = 0; j < text.size(); ++j) {
      const size_t replaced = before + (wanted[i] == text[j] ? 0 : 1);
      before = row[j + 1];
      row[j + 1] = std::min({replaced, before + 1, row[j] + 1});
    }
  }
  return *std::min_element(row.begin(), row.end());
}

}  // namespace

std::string label_of(const std::string& described) {
  const size_t start = described.find('\'');
  if (start == std::string::npos || described.back() != '\'') return "";
  return described.substr(start + 1, described.size() - start - 2);
}

std::string nearest_labels(const std::string& wanted, const std::vector<std::string>& labels) {
  std::set<std::pair<size_t, std::string>> by_distance;
  for (const std::string& label : labels) {
    by_distance.emplace(distance_to_piece(wanted, label), label);
  }
  std::string text;
  size_t shown = 0;
  for (const auto& [distance, label] : by_distance) {
    if (shown++ == kShownLabels) break;
    text += fmt::format("{}'{}'", text.empty() ? "" : ", ", label);
  }
  if (by_distance.size() <= kShownLabels) return text;
  return text + fmt::format(" and {} more", by_distance.size() - kShownLabels);
}

}  // namespace shardproof::sim::judge
