// Computation takes CPU time or the cost of ops; calls block until their transfers end.
#include "sim/world/clock/rank_clock.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/error.h"
#include "sim/case/stretch.h"

namespace shardproof::sim::world {
namespace {

double thread_cpu_us() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

}  // namespace

RankClock::RankClock(const WorldSpec& world, int64_t rank)
    : fixed_(world.compute == ComputeTime::kFixed),
      factor_(fixed_ ? 1 : world.compute_factor),
      op_us_(world.op_us),
      gflop_per_s_(world.gflop_per_s) {
  for (const StragglerSpec& straggler : world.stragglers) {
    if (straggler.rank == rank) factor_ *= straggler.compute;
  }
}

void RankClock::start() {
  calls_.clear();
  actions_.clear();
  now_us_ = 0;
  paused_ = 0;
  running_ = true;
  if (fixed_) meter_ = std::make_unique<OpMeter>(op_us_, gflop_per_s_);
  mark();
}

void RankClock::stop() {
  if (!running_) return;
  if (paused_ == 0) settle();
  running_ = false;
  meter_.reset();
}

void RankClock::mark() {
  if (meter_) {
    meter_->take_us();
  } else if (!fixed_) {
    cpu_mark_us_ = thread_cpu_us();
  }
}

void RankClock::settle() {
  const double computed = meter_ ? meter_->take_us() : fixed_ ? 0 : thread_cpu_us() - cpu_mark_us_;
  now_us_ += computed * factor_;
}

void RankClock::pause() {
  if (running_ && paused_++ == 0) settle();
}

void RankClock::resume() {
  if (running_ && --paused_ == 0) mark();
}

void RankClock::advance(double compute_us) {
  if (running_) now_us_ += compute_us * factor_;
}

size_t RankClock::issued(std::string name, std::string group) {
  SHARDPROOF_ASSERT(running_ && paused_ > 0, "a call is noted while the clock is paused");
  calls_.push_back({.name = std::move(name), .group = std::move(group), .transfer = {}});
  return calls_.size() - 1;
}

void RankClock::blocks(size_t call) { calls_[call].blocked_from_us = now_us_; }

void RankClock::released(size_t call, const TransferTime& transfer) {
  TimedCall& timed = calls_[call];
  timed.waited = true;
  timed.transfer = transfer;
  if (transfer.timed) now_us_ = std::max(now_us_, transfer.end_us);
}

void RankClock::act(const std::string& name, int64_t step, bool begins) {
  if (!running_) return;
  pause();
  if (begins) actions_.push_back({.name = name, .step = step, .from_us = now_us_});
  if (!actions_.empty()) actions_.back().to_us = now_us_;
  resume();
}

std::vector<Stretch> RankClock::timeline() const {
  std::vector<const TimedCall*> in_order_of_waits;
  for (const TimedCall& call : calls_) {
    if (call.waited && call.transfer.timed) in_order_of_waits.push_back(&call);
  }
  std::ranges::stable_sort(in_order_of_waits, [](const TimedCall* a, const TimedCall* b) {
    return a->blocked_from_us < b->blocked_from_us;
  });
  std::vector<Stretch> entries;
  const auto add = [&](const std::string& name, StretchKind kind, double from_us,
                       double to_us) -> Stretch& {
    return entries.emplace_back(Stretch{.name = name,
                                        .kind = kind,
                                        .in_virtual_time = true,
                                        .start_us = from_us,
                                        .duration_us = to_us - from_us});
  };
  double free_since = 0;
  for (const TimedCall* call : in_order_of_waits) {
    const TransferTime& transfer = call->transfer;
    const double from = call->blocked_from_us;
    const double ready = std::clamp(transfer.ready_us, from, std::max(from, transfer.end_us));
    const double end = std::max(from, transfer.end_us);
    if (from > free_since) add("compute", StretchKind::kCompute, free_since, from);
    if (ready > from) add(call->name, StretchKind::kWaiting, from, ready);
    if (end > ready) add(call->name, StretchKind::kExposed, ready, end);
    Stretch& sent =
        add(call->name, StretchKind::kCommunication, transfer.begin_us, transfer.end_us);
    sent.group = call->group;
    sent.ready_us = transfer.ready_us;
    sent.blocked_from_us = from;
    sent.last_rank = transfer.last_rank;
    free_since = end;
  }
  if (now_us_ > free_since) add("compute", StretchKind::kCompute, free_since, now_us_);
  for (const Acted& action : actions_) {
    add(action.name, StretchKind::kAction, action.from_us, action.to_us).step = action.step;
  }
  return entries;
}

}  // namespace shardproof::sim::world
