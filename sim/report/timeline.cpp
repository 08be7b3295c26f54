// Trace events: "M" names processes and threads, "X" is a stretch of time in microseconds.
#include "sim/report/timeline.h"

#include <cmath>
#include <limits>

#include "sim/report/escape.h"

namespace shardproof::sim {
namespace {

using Json = nlohmann::ordered_json;

struct Stretch {
  std::string name, kind;
  double start_us = 0, duration_us = 0;
};

bool read_stretch(const nlohmann::json& entry, Stretch& out) {
  const auto number = [&](const char* key, double& value) {
    const auto it = entry.find(key);
    if (it == entry.end() || !it->is_number()) return false;
    value = it->get<double>();
    return std::isfinite(value);
  };
  if (!entry.is_object() || !number("start_us", out.start_us)) return false;
  if (!number("duration_us", out.duration_us)) return false;
  const auto name = entry.find("name");
  if (name == entry.end() || !name->is_string()) return false;
  out.name = valid_utf8(name->get<std::string>());
  const auto kind = entry.find("kind");
  out.kind = kind != entry.end() && kind->is_string() ? valid_utf8(kind->get<std::string>()) : "";
  return true;
}

double first_start(const CaseResult& result) {
  double first = std::numeric_limits<double>::infinity();
  Stretch stretch;
  for (const auto& report : result.reports) {
    for (const auto& entry : report.timeline) {
      if (read_stretch(entry, stretch)) first = std::min(first, stretch.start_us);
    }
  }
  return std::isfinite(first) ? first : 0;
}

class EventList {
 public:
  void add(const Json& event) {
    text_ += text_.empty() ? "\n" : ",\n";
    text_ += event.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  void name(const char* what, size_t pid, int64_t tid, const std::string& value) {
    add({{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", {{"name", value}}}});
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_case(EventList& events, size_t pid, const CaseResult& result) {
  events.name("process_name", pid, 0, valid_utf8(result.spec.name));
  const double origin = first_start(result);
  Stretch stretch;
  for (const auto& report : result.reports) {
    events.name("thread_name", pid, report.rank, "rank " + std::to_string(report.rank));
    for (const auto& entry : report.timeline) {
      if (!read_stretch(entry, stretch)) continue;
      events.add({{"ph", "X"},
                  {"name", stretch.name},
                  {"cat", stretch.kind},
                  {"ts", stretch.start_us - origin},
                  {"dur", stretch.duration_us},
                  {"pid", pid},
                  {"tid", report.rank}});
    }
  }
}

}  // namespace

std::string timeline_json(const std::vector<CaseResult>& results) {
  EventList events;
  for (size_t i = 0; i < results.size(); ++i) add_case(events, i, results[i]);
  return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [" + events.text() + "\n]}\n";
}

}  // namespace shardproof::sim
