#include "sim/report/job_summary.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/count_of.h"
#include "base/error.h"
#include "sim/report/escape.h"

namespace shardproof::sim::report {
namespace {

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
