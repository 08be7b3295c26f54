// Prints a line for each finished case, and a status line below them on a terminal.
#include <fmt/format.h>

#include "sim/report/color.h"
#include "sim/report/escape.h"
#include "sim/report/summary.h"

namespace shardproof::sim::report {
namespace {

constexpr size_t kStatusWidth = 100;

}  // namespace

Progress::Progress(std::ostream& out, const Style& style, int64_t case_count)
    : out_(out), style_(style), case_count_(case_count) {}

Progress::~Progress() {
  clear();
  out_.flush();
}

void Progress::started(const std::string& case_name) {
  running_.insert(case_name);
  redraw();
}

void Progress::finished(const judge::CaseResult& result) {
  clear();
  running_.erase(result.spec.name);
  ++finished_count_;
  unexpected_count_ += result.as_expected ? 0 : 1;
  if (style_.json_lines) {
    out_ << case_json_line(result) << '\n';
  } else if (!result.as_expected) {
    out_ << result_text(result, style_.color) << '\n';
    if (style_.annotations) out_ << annotation(result) << '\n';
  } else if (!style_.quiet) {
    out_ << case_line(result, style_.color) << warning_lines(result) << '\n';
  }
  redraw();
}

void Progress::left_out(const CaseSpec& spec, const char* verdict) {
  if (!style_.json_lines) return;  // the summary says it
  const nlohmann::ordered_json line = {{"name", valid_utf8(spec.name)},
                                       {"file", valid_utf8(spec.file)},
                                       {"line", spec.line},
                                       {"backend", spec.world.backend},
                                       {"verdict", verdict},
                                       {"judged", false},
                                       {"as_expected", nullptr},
                                       {"message", valid_utf8(spec.skip)}};
  out_ << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
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

std::string Progress::time_left() const {
  if (finished_count_ == 0) return "";
  const std::chrono::duration<double> so_far = std::chrono::steady_clock::now() - start_;
  const double left = so_far.count() / static_cast<double>(finished_count_) *
                      static_cast<double>(case_count_ - finished_count_);
  return left < 90 ? fmt::format("about {:.0f} s left", left)
                   : fmt::format("about {:.0f} min left", left / 60);
}

void Progress::redraw() {
  if (style_.terminal && !running_.empty()) {
    clear();
    std::string status = fmt::format("[{}/{}]", finished_count_, case_count_);
    const std::string left = time_left();
    if (!left.empty()) status += " " + left + ",";
    if (unexpected_count_ > 0) status += fmt::format(" {} unexpected,", unexpected_count_);
    status += " running";
    for (const auto& name : running_) status += " " + name;
    if (status.size() > kStatusWidth) status = status.substr(0, kStatusWidth - 3) + "...";
    out_ << painted(status, kDim, style_.color);
    drawn_ = true;
  }
  out_.flush();
}

}  // namespace shardproof::sim::report
