// Prints a line for each finished case, and a status line below them on a terminal.
#include <fmt/format.h>

#include "sim/report/color.h"
#include "sim/report/summary.h"

namespace shardproof::sim {
namespace {

constexpr size_t kStatusWidth = 100;

}  // namespace

Progress::Progress(std::ostream& out, bool terminal, int64_t case_count)
    : out_(out), terminal_(terminal), case_count_(case_count) {}

Progress::~Progress() {
  clear();
  out_.flush();
}

void Progress::started(const std::string& case_name) {
  running_.insert(case_name);
  redraw();
}

void Progress::finished(const CaseResult& result) {
  clear();
  running_.erase(result.spec.name);
  ++finished_count_;
  if (result.as_expected) {
    out_ << case_line(result, terminal_) << warning_lines(result) << '\n';
  } else {
    ++unexpected_count_;
    std::string text = describe_result(result, terminal_);
    if (!text.empty() && text.back() == '\n') text.pop_back();
    out_ << text << warning_lines(result) << '\n';
  }
  redraw();
}

void Progress::note(const std::string& text) {
  clear();
  out_ << text << '\n';
  redraw();
}

void Progress::clear() {
  if (!drawn_) return;
  out_ << "\r\033[K";
  drawn_ = false;
}

void Progress::redraw() {
  if (terminal_ && !running_.empty()) {
    clear();
    std::string status = fmt::format("[{}/{}]", finished_count_, case_count_);
    if (unexpected_count_ > 0) status += fmt::format(" {} unexpected", unexpected_count_);
    status += " running";
    for (const auto& name : running_) status += " " + name;
    if (status.size() > kStatusWidth) status = status.substr(0, kStatusWidth - 3) + "...";
    out_ << painted(status, kDim, true);
    drawn_ = true;
  }
  out_.flush();
}

}  // namespace shardproof::sim
