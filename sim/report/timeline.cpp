// Trace events: "M" names processes and threads, "X" is an interval in microseconds.
#include "sim/report/timeline.h"

#include <cmath>
#include <limits>
#include <map>

#include "sim/case/stretch.h"
#include "sim/report/escape.h"
#include "sim/report/virtual_time.h"

namespace shardproof::sim::report {
namespace {

using Json = nlohmann::ordered_json;

bool has_time(const Stretch& stretch) {
  return std::isfinite(stretch.start_us) && std::isfinite(stretch.duration_us);
}

double first_start(const judge::CaseResult& result) {
  double first = std::numeric_limits<double>::infinity();
  for (const auto& report : result.reports) {
    for (const Stretch& stretch : report.timeline) {
      if (!has_time(stretch)) continue;
      first = stretch.in_virtual_time ? 0 : std::min(first, stretch.start_us);
    }
  }
  return std::isfinite(first) ? first : 0;
}

class EventList {
 public:
  void add(const Json& event) {
    if (!text_.empty()) text_ += ",\n";
    text_ += event.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  void name(const char* what, size_t pid, int64_t tid, const std::string& value) {
    add({{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", {{"name", value}}}});
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Threads besides those of the ranks, numbered after them in order of appearance.
class Lanes {
 public:
  Lanes(EventList& events, size_t pid, const judge::CaseResult& result)
      : events_(events), pid_(pid) {
    for (const auto& report : result.reports) next_ = std::max(next_, report.rank + 1);
  }
  // The lane of this rank's transfers in this group, which do not overlap each other.
  int64_t transfers(int64_t rank, const std::string& group) {
    return lane("rank " + std::to_string(rank) + " in " + group);
  }
  // The lane of this rank's actions, which do not begin and end with its stretches.
  int64_t actions(int64_t rank) { return lane("rank " + std::to_string(rank) + " actions"); }
  int64_t lane(const std::string& name) {
    const auto [it, is_new] = lanes_.try_emplace(name, next_);
    if (is_new) events_.name("thread_name", pid_, next_++, name);
    return it->second;
  }

 private:
  EventList& events_;
  size_t pid_;
  int64_t next_ = 0;
  std::map<std::string, int64_t> lanes_;
};

void add_critical_path(EventList& events, size_t pid, const judge::CaseResult& result,
                       Lanes& lanes) {
  const auto time = virtual_time(result);
  if (!time) return;
  const int64_t lane = lanes.lane("critical path");
  for (const PathStep& step : time->path) {
    const std::string rank = "rank " + std::to_string(step.rank) + " ";
    events.add({{"ph", "X"},
                {"name", step.compute ? rank + "compute" : step.name},
                {"cat", "critical path"},
                {"ts", step.start_us},
                {"dur", step.duration_us},
                {"pid", pid},
                {"tid", lane},
                {"args", {{"rank", step.rank}, {"compute", step.compute}}}});
  }
}

void add_case(EventList& events, size_t pid, const judge::CaseResult& result) {
  events.name("process_name", pid, 0, valid_utf8(result.spec.name));
  const double origin = first_start(result);
  Lanes lanes(events, pid, result);
  for (const auto& report : result.reports) {
    events.name("thread_name", pid, report.rank, "rank " + std::to_string(report.rank));
    for (const Stretch& stretch : report.timeline) {
      if (!has_time(stretch)) continue;
      const bool transfer = stretch.in_virtual_time && stretch.kind == StretchKind::kCommunication;
      const bool action = stretch.kind == StretchKind::kAction;
      events.add({{"ph", "X"},
                  {"name", valid_utf8(stretch.name)},
                  {"cat", name_of(stretch.kind)},
                  {"ts", stretch.start_us - origin},
                  {"dur", stretch.duration_us},
                  {"pid", pid},
                  {"tid", transfer ? lanes.transfers(report.rank, valid_utf8(stretch.group))
                          : action ? lanes.actions(report.rank)
                                   : report.rank},
                  {"args", {{"rank", report.rank}}}});
    }
  }
  add_critical_path(events, pid, result, lanes);
}

}  // namespace

std::string timeline_name(size_t index, const judge::CaseResult& result) {
  EventList events;
  events.name("process_name", index, 0, valid_utf8(result.spec.name));
  return events.text();
}

std::string timeline_events(size_t index, const judge::CaseResult& result) {
  EventList events;
  add_case(events, index, result);
  return events.text();
}

}  // namespace shardproof::sim::report
