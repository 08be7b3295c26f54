#include "sim/case/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace shardproof::sim {
namespace {

// Other names of numeric types. No edit distance is short enough for them.
std::string other_name(const std::string& word) {
  static const std::map<std::string, std::string> names = {
      {"fp64", "float64"}, {"double", "float64"}, {"fp32", "float32"},  {"float", "float32"},
      {"fp16", "float16"}, {"half", "float16"},   {"bf16", "bfloat16"},
  };
  const auto found = names.find(word);
  return found == names.end() ? "" : found->second;
}

}  // namespace

std::string known_names(const std::string& word, const std::vector<std::string>& known) {
  const std::string other = other_name(word);
  const bool is_known = std::find(known.begin(), known.end(), other) != known.end();
  const std::string nearest = is_known ? other : nearest_name(word, known);
  const std::string list = fmt::format("known are {}", fmt::join(known, ", "));
  return nearest.empty() ? list : fmt::format("{}; did you mean {}?", list, nearest);
}

namespace {

// "dp" of "dp%2" and "dp//2", the parts that hybrid sharding cuts an axis into.
std::string whole_axis(const std::string& name) {
  const size_t end = std::min(name.find_first_of("%/"), name.size());
  const std::string cut = name.substr(end);
  const size_t digits = cut.starts_with("//") ? 2 : 1;
  const bool is_cut = (cut.starts_with("%") || digits == 2) && cut.size() > digits &&
                      cut.find_first_not_of("0123456789", digits) == cut.npos;
  return is_cut ? name.substr(0, end) : name;
}

}  // namespace

std::string unknown_axis(const std::string& axis) {
  const std::vector<std::string> known = known_axes();
  std::multimap<int64_t, std::string> names;  // by their place in the mesh
  bool is_in_order = true;
  auto last = known.begin();
  for (size_t begin = 0; begin <= axis.size();) {
    const size_t end = std::min(axis.find_first_of("+,", begin), axis.size());
    const std::string name = whole_axis(axis.substr(begin, end - begin));
    const auto at = std::find(known.begin(), known.end(), name);
    if (name.find(" holders of ") != name.npos) {
      return "'" + name + "' is a group of ranks and no axis; select its calls by their label";
    }
    if (at == known.end()) return "unknown axis '" + name + "'";
    is_in_order = is_in_order && at >= last;
    last = at;
    names.emplace(at - known.begin(), axis.substr(begin, end - begin));
    begin = end + 1;
  }
  if (is_in_order) return "";
  std::string in_order;
  for (const auto& [place, name] : names) in_order += (in_order.empty() ? "" : "+") + name;
  return fmt::format("'{}' is not in the order of the mesh, which is {}", axis, in_order);
}

std::string group_of_axis(std::string axis) {
  std::replace(axis.begin(), axis.end(), '+', ',');
  return axis;
}

}  // namespace shardproof::sim
