#include "sim/uses/recorded/wrong_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>

namespace shardproof::sim::recorded {
namespace {

constexpr size_t kListed = 4;
constexpr size_t kFewestLetters = 3;
constexpr std::string_view kGrad = "grad.";

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

bool is_in_all(const std::string& part, const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.find(part) != name.npos; });
}

bool is_in_none(const std::string& part, const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.find(part) == name.npos; });
}

// The longest run of letters that all wrong names have and no right name has; "" without one of
// kFewestLetters.
std::string common_part(const std::vector<std::string>& wrong,
                        const std::vector<std::string>& right) {
  const std::string& name = wrong.front();
  std::string longest;
  for (size_t begin = 0; begin < name.size(); ++begin) {
    for (size_t end = begin; end < name.size() && is_letter(name[end]); ++end) {
      const size_t size = end + 1 - begin;
      if (size < kFewestLetters || size <= longest.size()) continue;
      const std::string part = name.substr(begin, size);
      if (is_in_all(part, wrong) && is_in_none(part, right)) longest = part;
    }
  }
  return longest;
}

}  // namespace

std::string other_wrong_gradients(const std::vector<judge::RankReport>& reports, int64_t step) {
  std::map<std::string, bool> is_wrong;
  for (const judge::RankReport& report : reports) {
    for (const judge::ResultRow& row : report.rows) {
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

}  // namespace shardproof::sim::recorded
