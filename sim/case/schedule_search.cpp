#include "sim/case/schedule_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <sstream>

namespace shardproof::sim {

namespace {

constexpr int kScheduleBits = 61;
constexpr const char* kRedundant = "redundant";

// Bits from the lowest on. A deviation is the distance from the one before it, as Elias's gamma
// code, and its way in unary; behind the last one there are only zeros.
struct BitWriter {
  int64_t bits = 0;
  int count = 0;
  void add(bool bit) {
    if (count < kScheduleBits && bit) bits |= int64_t{1} << count;
    ++count;
  }
};

struct BitReader {
  int64_t bits;
  bool take() {
    const bool bit = (bits & 1) != 0;
    bits >>= 1;
    return bit;
  }
};

}  // namespace

std::optional<int64_t> exact_schedule(const std::vector<ScheduleDeviation>& deviations) {
  BitWriter out;
  int64_t node = -1;
  for (const ScheduleDeviation& one : deviations) {
    const auto distance = static_cast<uint64_t>(one.node - node);
    const auto width = static_cast<int>(std::bit_width(distance)) - 1;
    for (int i = 0; i < width; ++i) out.add(false);
    out.add(true);
    for (int i = 0; i < width; ++i) out.add((distance >> i & 1) != 0);
    for (int64_t i = 1; i < one.way; ++i) out.add(true);
    out.add(false);
    node = one.node;
  }
  if (out.count > kScheduleBits) return std::nullopt;
  return kFirstExactSchedule + out.bits;
}

std::vector<ScheduleDeviation> deviations_of(int64_t schedule) {
  BitReader in{schedule - kFirstExactSchedule};
  std::vector<ScheduleDeviation> deviations;
  int64_t node = -1;
  while (in.bits > 0) {
    int width = 0;
    while (!in.take()) ++width;
    int64_t distance = int64_t{1} << width;
    for (int i = 0; i < width; ++i) distance |= int64_t{in.take()} << i;
    node += distance;
    ScheduleDeviation& one = deviations.emplace_back(ScheduleDeviation{.node = node, .way = 1});
    while (in.take()) ++one.way;
  }
  return deviations;
}

std::string trace_text(const ScheduleTrace& trace) {
  return fmt::format("{}{}{}", fmt::join(trace.ways, " "), trace.ways.empty() ? "" : " ",
                     trace.redundant ? kRedundant : "");
}

ScheduleTrace trace_from_text(const std::string& text) {
  ScheduleTrace trace;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word == kRedundant) {
      trace.redundant = true;
    } else {
      trace.ways.push_back(std::stoll(word));
    }
  }
  return trace;
}

std::optional<int64_t> ScheduleSearch::next() {
  if (open_.empty()) return std::nullopt;
  const int64_t schedule = open_.front();
  open_.pop_front();
  return schedule;
}

void ScheduleSearch::add(int64_t schedule, const ScheduleTrace& trace) {
  ++(trace.redundant ? redundant_ : explored_);
  std::vector<ScheduleDeviation> deviations = deviations_of(schedule);
  const int64_t first = deviations.empty() ? 0 : deviations.back().node + 1;
  for (int64_t node = first; node < std::ssize(trace.ways); ++node) {
    for (int64_t way = 1; way < trace.ways[static_cast<size_t>(node)]; ++way) {
      deviations.push_back({.node = node, .way = way});
      const auto other = exact_schedule(deviations);
      deviations.pop_back();
      if (other) {
        open_.push_back(*other);
      } else {
        too_deep_ = true;
      }
    }
  }
}

}  // namespace shardproof::sim
