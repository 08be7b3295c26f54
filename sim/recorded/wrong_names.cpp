#include "sim/recorded/wrong_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

namespace shardproof::sim {
namespace {

constexpr size_t kListed = 4;
constexpr std::string_view kGrad = "grad.";

// The parts of a dotted name that are no numbers.
std::set<std::string> parts_of(const std::string& name) {
  std::set<std::string> parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (part.find_first_not_of("0123456789") != std::string::npos) parts.insert(part);
    begin = end + 1;
  }
  return parts;
}

// A part that all wrong names have and no right name has; "" without one.
std::string common_part(const std::vector<std::string>& wrong,
                        const std::vector<std::string>& right) {
  std::set<std::string> common = parts_of(wrong.front());
  for (const std::string& name : wrong) {
    const std::set<std::string> here = parts_of(name);
    std::erase_if(common, [&](const std::string& part) { return !here.contains(part); });
  }
  for (const std::string& name : right) {
    for (const std::string& part : parts_of(name)) common.erase(part);
  }
  return common.empty() ? "" : *common.begin();
}

}  // namespace

std::string other_wrong_gradients(const std::vector<RankReport>& reports, int64_t step) {
  std::map<std::string, bool> is_wrong;
  for (const RankReport& report : reports) {
    for (const ResultRow& row : report.rows) {
      if (row.step != step || !row.name.starts_with(kGrad)) continue;
      bool& wrong = is_wrong[row.name.substr(kGrad.size())];
      wrong = wrong || row.is_wrong();
    }
  }
  std::vector<std::string> wrong, right;
  for (const auto& [name, bad] : is_wrong) (bad ? wrong : right).push_back(name);
  if (wrong.size() < 2) return "";
  const std::string count =
      fmt::format("{} of {} gradients of step {} are wrong", wrong.size(), is_wrong.size(), step);
  if (right.empty()) return count;
  const std::string part = common_part(wrong, right);
  if (!part.empty()) {
    return fmt::format("{}: all with '{}' in their name, and no others", count, part);
  }
  const size_t more = wrong.size() > kListed ? wrong.size() - kListed : 0;
  wrong.resize(wrong.size() - more);
  return fmt::format("{}: {}{}", count, fmt::join(wrong, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace shardproof::sim
