// A listener that records calls.
#include "sim/world/calls/call_trace.h"

#include "sim/case/stretch.h"

namespace shardproof::sim::world {
namespace {

double microseconds(CallTrace::Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

}  // namespace

CallTrace::CallTrace(Forward forward, Forward forward_wait)
    : forward_(std::move(forward)), forward_wait_(std::move(forward_wait)) {}

void CallTrace::before_call(const Call& call) {
  if (forward_) forward_(call);
  calls_.push_back(describe(call));
  ++counts_[{call.group.substr(0, call.group.find('[')), name_of(call.op)}];
  spans_.push_back({.call = call, .start = Clock::now()});
}

// Searches from the last call, because few calls are in flight.
CallTrace::Span* CallTrace::open_span(const Call& call) {
  for (auto span = spans_.rbegin(); span != spans_.rend(); ++span) {
    const Call& known = span->call;
    if (!span->ended && known.sequence == call.sequence && known.op == call.op &&
        known.group == call.group && known.root == call.root && known.tag == call.tag) {
      return &*span;
    }
  }
  return nullptr;
}

void CallTrace::before_wait(const Call& call) {
  if (forward_wait_) forward_wait_(call);
  if (Span* span = open_span(call)) {
    span->waited = true;
    span->wait_start = Clock::now();
  }
}

void CallTrace::after_call(const Call& call) {
  if (Span* span = open_span(call)) {
    span->end = Clock::now();
    span->ended = true;
  }
}

void CallTrace::act(const std::string& name, int64_t step, bool begins) {
  const Clock::time_point now = Clock::now();
  if (begins) actions_.push_back({.name = name, .step = step, .start = now, .end = now});
  if (!begins && !actions_.empty()) actions_.back().end = now;
}

std::vector<Stretch> CallTrace::timeline() const {
  std::vector<Stretch> out;
  const auto add = [&](const std::string& name, Clock::time_point start, Clock::time_point end,
                       StretchKind kind) {
    out.push_back({.name = name,
                   .kind = kind,
                   .start_us = microseconds(start - origin_),
                   .duration_us = microseconds(end - start)});
  };
  for (const Span& span : spans_) {
    if (!span.ended) continue;
    const std::string name = describe(span.call);
    add(name, span.start, span.end, StretchKind::kCommunication);
    if (span.waited) add(name, span.wait_start, span.end, StretchKind::kWait);
  }
  for (const Acted& action : actions_) {
    add(action.name, action.start, action.end, StretchKind::kAction);
    out.back().step = action.step;
  }
  return out;
}

}  // namespace shardproof::sim::world
