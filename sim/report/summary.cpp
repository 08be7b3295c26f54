#include "sim/report/summary.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/count_of.h"
#include "base/error.h"
#include "base/utf8.h"
#include "sim/case/reference.h"
#include "sim/judge/verdict/replay.h"
#include "sim/report/color.h"
#include "sim/report/escape.h"
#include "sim/report/virtual_time.h"

namespace shardproof::sim::report {
namespace {

constexpr size_t kShownRanks = 8;

std::string_view color_of(const judge::CaseResult& result) {
  if (result.as_expected) return kGreen;
  return result.verdict == Verdict::kRefused ? kYellow : kRed;
}

std::string what_it_says(const judge::CaseResult& result) {
  if (!result.unexpected.empty()) return first_line(result.unexpected);
  if (result.divergence) {
    const auto& divergence = *result.divergence;
    const std::string& why = divergence.likely.empty() ? divergence.pattern : divergence.likely;
    return divergence.tensor + (why.empty() ? "" : ": " + why);
  }
  return first_line(result.message);
}

// "grad.w on ranks 1, 3: 2 of 6 elements are wrong; likely summed over dp twice"
std::string divergence_line(const judge::Divergence& found) {
  std::string text = found.tensor;
  if (!found.ranks.empty()) {
    const size_t shown = std::min(found.ranks.size(), kShownRanks);
    text += fmt::format(
        " on rank{} {}{}", found.ranks.size() > 1 ? "s" : "",
        fmt::join(found.ranks.begin(), found.ranks.begin() + shown, ", "),
        found.ranks.size() > shown ? fmt::format(" and {} more", found.ranks.size() - shown) : "");
  }
  if (!found.pattern.empty()) text += ": " + first_line(found.pattern);
  return found.likely.empty() ? text : text + "; likely " + first_line(found.likely);
}

std::string unexpected_lines(const SummaryParts& parts, bool color) {
  std::string text;
  for (const auto& result : parts.results) {
    if (result.as_expected) continue;
    text += fmt::format("  {}  {}   {}\n",
                        painted(fmt::format("{:9}", result.verdict), color_of(result), color),
                        result.spec.name, finding_line(result));
    if (!result.replay.empty()) text += fmt::format("             {}\n", result.replay);
  }
  return text;
}

int64_t unresolved_tensors(const std::vector<judge::CaseResult>& results) {
  int64_t tensors = 0;
  for (const judge::CaseResult& result : results) {
    tensors += std::ssize(result.account.unresolved);
  }
  return tensors;
}

// "21 tensors in 1 case could not be judged in this precision", or "".
std::string unresolved_counts(const std::vector<judge::CaseResult>& results) {
  const auto cases = std::ranges::count_if(
      results, [](const auto& result) { return !result.account.unresolved.empty(); });
  if (cases == 0) return "";
  return fmt::format("{} in {} could not be judged in this precision",
                     count_of(unresolved_tensors(results), "tensor"), count_of(cases, "case"));
}

std::string unresolved_line(const std::vector<judge::CaseResult>& results) {
  const std::string counts = unresolved_counts(results);
  if (counts.empty()) return "";
  return fmt::format("  unresolved {} (--no-unresolved makes that exit status 1)\n", counts);
}

// What matches do not claim, with how many cases each is said of.
std::map<std::string, int64_t> limits_of_matches(const std::vector<judge::CaseResult>& results) {
  std::map<std::string, int64_t> cases;
  for (const judge::CaseResult& result : results) {
    if (result.verdict != Verdict::kMatch || !result.spec.judged) continue;
    for (const std::string& limit : {against_text(result.spec), sampled_text(result.spec)}) {
      if (!limit.empty()) ++cases[limit];
    }
    if (judge::lacks_gradients(result.account.grounds)) ++cases["without a gradient to judge"];
  }
  return cases;
}

std::string limit_lines(const std::vector<judge::CaseResult>& results) {
  std::string text;
  for (const auto& [limit, cases] : limits_of_matches(results)) {
    text += fmt::format("  {:9}  {}: {}\n", "match", limit, count_of(cases, "case"));
  }
  return text;
}

// One line per reason, with how many cases it kept from running.
std::string reason_lines(const char* what, const std::vector<CaseSpec>& cases) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const auto& spec : cases) by_reason[spec.skip].push_back(spec.name);
  std::string text;
  for (const auto& [reason, names] : by_reason) {
    text +=
        fmt::format("  {:9}  {}{}   {}\n", what, names.front(),
                    names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "", reason);
  }
  return text;
}

constexpr const char* kVariable = "GITHUB_STEP_SUMMARY";
constexpr size_t kMostShown = 20;

// Text in a cell of a table, in one line, that Markdown shows as it is.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    const bool is_control = static_cast<unsigned char>(c) < ' ';
    if (std::string_view("\\|*`<").find(c) != std::string_view::npos) out += '\\';
    out += is_control ? ' ' : c;
  }
  return out;
}

// Appends `text`, which may be empty: then it only shows that it could.
void append(const std::string& file, const std::string& text) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  bool written = fd >= 0;
  int why = errno;
  for (size_t done = 0; written && done < text.size();) {
    const ssize_t count = ::write(fd, text.data() + done, text.size() - done);
    why = errno;
    written = count > 0 || (count < 0 && why == EINTR);
    done += static_cast<size_t>(std::max<ssize_t>(count, 0));
  }
  if (fd >= 0) ::close(fd);
  if (written) return;
  throw_bad_input(
      fmt::format("{} names {}, which cannot be written: {}", kVariable, file, std::strerror(why)),
      "name a file that can be written, or unset the variable");
}

}  // namespace

bool is_unjudged(const judge::CaseResult& result) {
  return !result.spec.judged && result.verdict == Verdict::kMatch;
}

std::string totals_text(const SummaryParts& parts, bool color) {
  std::map<Verdict, int64_t> counts;
  int64_t unexpected = 0, unjudged = 0;
  for (const auto& result : parts.results) {
    is_unjudged(result) ? ++unjudged : ++counts[result.verdict];
    unexpected += result.as_expected ? 0 : 1;
  }
  std::string text = count_of(std::ssize(parts.results) + std::ssize(parts.not_run), "case");
  if (!parts.not_run.empty()) text = fmt::format("{} of {}", parts.results.size(), text);
  const char* separator = ": ";
  for (const auto& [verdict, count] : counts) {
    text += fmt::format("{}{} {}", separator, count, verdict);
    separator = ", ";
  }
  if (unjudged > 0) text += fmt::format("{}{} not judged (judged: false)", separator, unjudged);
  if (!parts.skipped.empty()) text += fmt::format("; {} skipped", parts.skipped.size());
  if (!parts.not_run.empty()) text += fmt::format("; {} not run", parts.not_run.size());
  text += fmt::format("   {:.1f} s   ", parts.seconds);
  if (unexpected > 0) {
    return text + painted(fmt::format("{} not as expected", unexpected), kRed, color);
  }
  if (!parts.not_run.empty()) return text + painted("not all were run", kYellow, color);
  if (parts.results.empty()) return text + painted("nothing was run", kYellow, color);
  return text + painted("all as expected", kGreen, color);
}

std::string status_text(const SummaryParts& parts) {
  if (parts.exit_status != 1) return exit_status_text(parts.exit_status);
  const auto unexpected = std::ranges::count_if(
      parts.results, [](const judge::CaseResult& result) { return !result.as_expected; });
  if (unexpected > 0) {
    return fmt::format("1: {} of {} not as expected", unexpected,
                       count_of(std::ssize(parts.results), "case"));
  }
  return fmt::format("1: {} could not be judged in this precision",
                     count_of(unresolved_tensors(parts.results), "tensor"));
}

std::string case_line(const judge::CaseResult& result, bool color) {
  const std::string word = is_unjudged(result) ? "not judged" : name_of(result.verdict);
  std::string line = fmt::format(
      "{}  {:7.3f} s  {}",
      painted(fmt::format("{:9}", word), is_unjudged(result) ? kYellow : color_of(result), color),
      result.seconds, result.spec.name);
  if (result.verdict == Verdict::kMatch && result.tensors_compared > 0) {
    const std::string grounds = judge::grounds_text(result.account.grounds);
    line += fmt::format("   {}, {}{}{}, at most {:.3g}% of the allowance used",
                        count_of(result.tensors_compared, "tensor"),
                        count_of(result.elements_compared, "element"), grounds.empty() ? "" : ", ",
                        grounds, 100 * result.worst_ratio);
    const std::string unresolved = judge::unresolved_text(result.account, result.spec.precision);
    if (!unresolved.empty()) line += ", " + painted(unresolved, kYellow, color);
    for (const std::string& limit : {against_text(result.spec), sampled_text(result.spec)}) {
      if (!limit.empty()) line += ", match " + limit;
    }
  } else if (result.verdict != Verdict::kMatch) {
    line += fmt::format("   as expected: {}", what_it_says(result));
  }
  const std::string time = virtual_time_line(result);
  if (!time.empty()) line += "\n             " + time;
  return line;
}

std::string case_json_line(const judge::CaseResult& result) {
  nlohmann::ordered_json line = {
      {"name", valid_utf8(result.spec.name)},
      {"file", valid_utf8(result.spec.file)},
      {"line", result.spec.line},
      {"backend", result.spec.world.backend},
      {"verdict", result.verdict},
      {"judged", result.spec.judged},
      {"kind", result.kind},
      {"as_expected", result.as_expected},
      {"message", valid_utf8(result.as_expected ? what_it_says(result) : finding_line(result))},
      {"seconds", result.seconds}};
  if (result.divergence) {
    line["tensor"] = valid_utf8(result.divergence->tensor);
    line["pattern"] = valid_utf8(result.divergence->pattern);
    line["likely"] = valid_utf8(result.divergence->likely);
    line["ranks"] = result.divergence->ranks;
  }
  if (result.spec.reference.is_set()) line["reference"] = reference_name(result.spec.reference);
  if (result.spec.sample_rows > 0) line["sample_rows"] = result.spec.sample_rows;
  if (!result.account.unresolved.empty()) line["unresolved"] = result.account.unresolved.size();
  if (!result.replay.empty()) line["replay"] = valid_utf8(result.replay);
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string finding_line(const judge::CaseResult& result) {
  const std::string expected = first_line(result.unexpected);
  const std::string found =
      result.divergence ? divergence_line(*result.divergence) : first_line(result.message);
  return expected + (expected.empty() || found.empty() ? "" : ": ") + found;
}

std::string annotation(const judge::CaseResult& result) {
  const auto escaped = [](const std::string& text, const std::string& special) {
    std::string out;
    for (const char c : valid_utf8(text)) {
      const bool plain = special.find(c) == special.npos;
      out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned>(c));
    }
    return out;
  };
  const std::string of_text = "%\r\n", of_property = "%\r\n,:";
  return fmt::format("::error file={},line={},title={}::{}", escaped(result.spec.file, of_property),
                     result.spec.line,
                     escaped(result.spec.name + " " + name_of(result.verdict), of_property),
                     escaped(finding_line(result), of_text));
}

std::string slowest_text(const std::vector<judge::CaseResult>& results, int64_t count) {
  std::vector<const judge::CaseResult*> slowest;
  for (const judge::CaseResult& result : results) slowest.push_back(&result);
  std::ranges::stable_sort(slowest,
                           [](const auto* a, const auto* b) { return a->seconds > b->seconds; });
  slowest.resize(static_cast<size_t>(std::min<int64_t>(count, std::ssize(slowest))));
  std::string text = slowest.empty() ? "" : "slowest cases\n";
  for (const judge::CaseResult* result : slowest) {
    text += fmt::format("  {:8.3f} s  {}   {}\n", result->seconds, result->spec.name,
                        result->spec.world.backend);
  }
  return text;
}

std::string warning_lines(const judge::CaseResult& result) {
  std::map<std::string, std::vector<int64_t>> ranks;
  for (const judge::RankReport& report : result.reports) {
    for (const std::string& warning : report.warnings) {
      std::vector<int64_t>& warned = ranks[warning];
      if (warned.empty() || warned.back() != report.rank) warned.push_back(report.rank);
    }
  }
  std::string text;
  for (const auto& [warning, warned] : ranks) {
    text += fmt::format("\n             warning  {}: {}", ranks_text(warned), warning);
  }
  return text;
}

std::string result_text(const judge::CaseResult& result, bool color) {
  std::string text = judge::describe_result(result, color);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text + warning_lines(result);
}

std::string slow_text(int64_t slow) {
  return fmt::format("{} tagged slow or manual (--all runs them)", count_of(slow, "case"));
}

std::string summary_text(const SummaryParts& parts, bool color) {
  std::string text = "\n" + totals_text(parts, color) + "\n" + unexpected_lines(parts, color) +
                     reason_lines("skipped", parts.skipped) +
                     reason_lines("not run", parts.not_run) + unresolved_line(parts.results) +
                     limit_lines(parts.results);
  if (parts.slow > 0) text += fmt::format("  left out   {}\n", slow_text(parts.slow));
  if (!parts.run_folder.empty()) {
    const std::string folder = judge::shell_word(parts.run_folder);
    text += fmt::format("  results    {}   (pictures: {} report {})\n", parts.run_folder,
                        parts.program, folder);
    if (!parts.not_run.empty() && parts.resumable) {
      text += fmt::format("  go on with {} run --resume {}\n", parts.program, folder);
    }
  }
  if (parts.exit_status > 0) {
    text += fmt::format("  exit status {}\n", status_text(parts));
  }
  return text;
}

// The exit statuses in words.

std::string exit_status_text(int exit_status) {
  static const std::map<int, std::string> meanings = {
      {0, "every case as expected"},
      {1, "a case not as expected, or with --no-unresolved a tensor that could not be judged"},
      {2, "bad input, no case selected, or selected cases that were not run"},
      {3, "a world failed"},
      {4, "refused"},
      {5, "a fault in shardproof itself"},
      {130, "interrupted"}};
  const auto meaning = meanings.find(exit_status);
  return meaning == meanings.end() ? std::to_string(exit_status)
                                   : fmt::format("{}: {}", exit_status, meaning->second);
}

std::string job_section(const std::string& title, const std::string& counts,
                        const std::string& named, const std::vector<JobFinding>& findings,
                        const std::string& all) {
  std::string text = fmt::format("### {}\n\n{}\n", cell(title), cell(counts));
  if (!findings.empty()) text += fmt::format("\n| {} | finding |\n|---|---|\n", named);
  const size_t shown = std::min(findings.size(), kMostShown);
  for (size_t i = 0; i < shown; ++i) {
    text += fmt::format("| {} | {} |\n", cell(findings[i].name), cell(findings[i].text));
  }
  if (shown < findings.size()) {
    text += fmt::format("\n{} more are in {}.\n", findings.size() - shown, cell(all));
  }
  return text + "\n";
}

std::string job_section(const SummaryParts& parts) {
  std::vector<JobFinding> findings;
  for (const judge::CaseResult& result : parts.results) {
    if (!result.as_expected) findings.push_back({result.spec.name, finding_line(result)});
  }
  const size_t count = parts.results.size();
  std::string counts = totals_text(parts, false);
  if (parts.exit_status > 0 && findings.empty()) counts += "; exit status " + status_text(parts);
  if (parts.slow > 0) counts += "; left out " + slow_text(parts.slow);
  const std::string unresolved = unresolved_counts(parts.results);
  if (!unresolved.empty()) counts += "; unresolved " + unresolved;
  for (const auto& [limit, cases] : limits_of_matches(parts.results)) {
    counts += fmt::format("; match {}: {}", limit, count_of(cases, "case"));
  }
  return job_section(
      fmt::format("shardproof: {} of {} as expected", count - findings.size(), count), counts,
      "case", findings, parts.run_folder + "/junit.xml");
}

JobSummary::JobSummary() {
  const char* file = std::getenv(kVariable);
  if (file == nullptr || *file == '\0') return;
  file_ = file;
  append(file_, "");
}

void JobSummary::add(const std::string& section) const {
  if (!file_.empty()) append(file_, section);
}

}  // namespace shardproof::sim::report
