#include "sim/report/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "sim/report/color.h"
#include "sim/report/virtual_time.h"

namespace shardproof::sim {
namespace {

constexpr const char* kVerdicts[] = {"match",  "mismatch",  "refused",
                                     "failed", "bad_input", "internal"};

std::string_view color_of(const CaseResult& result) {
  if (result.as_expected) return kGreen;
  return result.verdict == "refused" ? kYellow : kRed;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string what_it_says(const CaseResult& result) {
  if (!result.unexpected.empty()) return first_line(result.unexpected);
  if (result.divergence) {
    const auto& divergence = *result.divergence;
    const std::string& why = divergence.likely.empty() ? divergence.pattern : divergence.likely;
    return divergence.tensor + (why.empty() ? "" : ": " + why);
  }
  return first_line(result.message);
}

std::string count_of(size_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string totals(const SummaryParts& parts, bool color) {
  std::map<std::string, int64_t> counts;
  int64_t unexpected = 0;
  for (const auto& result : parts.results) {
    ++counts[result.verdict];
    unexpected += result.as_expected ? 0 : 1;
  }
  std::string text = count_of(parts.results.size(), "case");
  const char* separator = ": ";
  for (const char* verdict : kVerdicts) {
    if (counts[verdict] == 0) continue;
    text += fmt::format("{}{} {}", separator, counts[verdict], verdict);
    separator = ", ";
  }
  if (!parts.skipped.empty()) text += fmt::format("; {} skipped", parts.skipped.size());
  text += fmt::format("   {:.1f} s   ", parts.seconds);
  return text + (unexpected == 0
                     ? painted("all as expected", kGreen, color)
                     : painted(fmt::format("{} not as expected", unexpected), kRed, color));
}

std::string unexpected_lines(const SummaryParts& parts, bool color) {
  std::string text;
  for (const auto& result : parts.results) {
    if (result.as_expected) continue;
    text += fmt::format("  {}  {}   {}\n",
                        painted(fmt::format("{:9}", result.verdict), color_of(result), color),
                        result.spec.name, what_it_says(result));
    if (!result.replay.empty()) text += fmt::format("             {}\n", result.replay);
  }
  return text;
}

std::string unresolved_line(const std::vector<CaseResult>& results) {
  size_t cases = 0, tensors = 0;
  for (const CaseResult& result : results) {
    cases += !result.account.unresolved.empty();
    tensors += result.account.unresolved.size();
  }
  if (cases == 0) return "";
  return fmt::format("  unresolved {} in {}: no honest rule decides there (--no-unresolved)\n",
                     count_of(tensors, "tensor"), count_of(cases, "case"));
}

// One line per reason, with the number of cases that it skipped.
std::string skip_lines(const std::vector<CaseSpec>& skipped) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const auto& spec : skipped) by_reason[spec.skip].push_back(spec.name);
  std::string text;
  for (const auto& [reason, names] : by_reason) {
    text +=
        fmt::format("  skipped    {}{}   {}\n", names.front(),
                    names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "", reason);
  }
  return text;
}

}  // namespace

std::string case_line(const CaseResult& result, bool color) {
  std::string line = fmt::format(
      "{}  {:7.3f} s  {}", painted(fmt::format("{:9}", result.verdict), color_of(result), color),
      result.seconds, result.spec.name);
  if (result.verdict == "match" && result.tensors_compared > 0) {
    line += fmt::format("   {}, at most {:.2g}% of the allowance used",
                        count_of(static_cast<size_t>(result.tensors_compared), "tensor"),
                        100 * result.worst_ratio);
    const std::string unresolved = unresolved_text(result.account, result.spec.precision);
    if (!unresolved.empty()) line += ", " + painted(unresolved, kYellow, color);
  } else if (result.verdict != "match") {
    line += fmt::format("   as expected: {}", what_it_says(result));
  }
  const std::string time = virtual_time_line(result);
  if (!time.empty()) line += "\n             " + time;
  return line;
}

std::string warning_lines(const CaseResult& result) {
  std::map<std::string, std::vector<int64_t>> ranks;
  for (const RankReport& report : result.reports) {
    for (const std::string& warning : report.warnings) {
      std::vector<int64_t>& said = ranks[warning];
      if (said.empty() || said.back() != report.rank) said.push_back(report.rank);
    }
  }
  std::string text;
  for (const auto& [warning, said] : ranks) {
    text += fmt::format("\n             warning  rank{} {}: {}", said.size() == 1 ? "" : "s",
                        fmt::join(said, ", "), warning);
  }
  return text;
}

std::string exit_status_text(int exit_status) {
  switch (exit_status) {
    case 0:
      return "0: every case as expected";
    case 1:
      return "1: a mismatch, or with --no-unresolved a tensor that is not resolvable";
    case 2:
      return "2: bad input, or no case selected";
    case 3:
      return "3: a world failed";
    case 4:
      return "4: refused";
    case 5:
      return "5: a fault in shardproof itself";
    case 130:
      return "130: interrupted";
    default:
      return fmt::format("{}", exit_status);
  }
}

std::string summary_text(const SummaryParts& parts, bool color) {
  std::string text = "\n" + totals(parts, color) + "\n" + unexpected_lines(parts, color) +
                     skip_lines(parts.skipped);
  text += unresolved_line(parts.results);
  if (parts.interrupted) text += "  interrupted: the remaining cases were not run\n";
  if (!parts.run_folder.empty()) {
    text +=
        fmt::format("  results    {0}   (pictures: ./shardproof report {0})\n", parts.run_folder);
  }
  if (parts.exit_status != 0) {
    text += fmt::format("  exit status {}\n", exit_status_text(parts.exit_status));
  }
  return text;
}

}  // namespace shardproof::sim
