// A listener that records calls.
#include "sim/world/calls/call_trace.h"

#include "sim/case/stretch.h"

namespace shardproof::sim::world {
namespace {

double microseconds(CallTrace::Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

}  // namespace

CallTrace::CallTrace(Forward forward, Forward forward_wait, Clock::time_point origin)
    : forward_(std::move(forward)), forward_wait_(std::move(forward_wait)), origin_(origin) {}

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

std::vector<nlohmann::json> CallTrace::timeline() const {
  std::vector<nlohmann::json> out;
  const auto entry = [&](const Span& span, Clock::time_point start, StretchKind kind) {
    out.push_back({{"name", describe(span.call)},
                   {"start_us", microseconds(start - origin_)},
                   {"duration_us", microseconds(span.end - start)},
                   {"kind", name_of(kind)}});
  };
  for (const Span& span : spans_) {
    if (!span.ended) continue;
    entry(span, span.start, StretchKind::kCommunication);
    if (span.waited) entry(span, span.wait_start, StretchKind::kWait);
  }
  return out;
}

}  // namespace shardproof::sim::world
