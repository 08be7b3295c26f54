#include "sim/uses/validate/measure_times.h"

#include <algorithm>

#include "base/quantile.h"

namespace shardproof::sim::validate {
namespace {

constexpr int64_t kRepeats = 2;  // of what is slow, before a finding names it

// Leaves one entry of each pair, with the better values of all its entries.
void keep_better(std::vector<PairTime>& pairs) {
  std::map<RankPair, PairTime> best;
  for (const PairTime& pair : pairs) {
    PairTime& kept = best.emplace(RankPair(pair.a, pair.b), pair).first->second;
    kept.latency_us = std::min(kept.latency_us, pair.latency_us);
    kept.gb_per_s = std::max(kept.gb_per_s, pair.gb_per_s);
  }
  pairs.clear();
  for (const auto& [ranks, pair] : best) pairs.push_back(pair);
}

}  // namespace

std::optional<Times> measure_times(const Hosts& hosts, const std::vector<int64_t>& members,
                                   const std::vector<int64_t>& pairings, double factor,
                                   const RunPart& run) {
  Times times;
  std::map<int64_t, double> compute_ms;
  const auto measure = [&](const PairingsPart& part) {
    const auto reports = run(part);
    for (const auto& [rank, report] : reports) {
      for (const auto& pair : report.json.at("pairs")) {
        times.pairs.push_back({rank, pair.at(0), pair.at(1), pair.at(2)});
      }
      if (!part.briefly && !part.again) continue;
      const double computing = report.json.at("compute_ms");
      double& best = compute_ms.emplace(rank, computing).first->second;
      best = std::min(best, computing);
    }
    keep_better(times.pairs);
    times.compute_ms = by_rank(compute_ms, std::ssize(hosts.of_rank));
    return !reports.empty();
  };
  const int64_t all = std::ssize(pairings);
  const int64_t first = pairings_to_tell(hosts.of_processes(members), pairings);
  if (!measure({.count = first, .briefly = true})) return std::nullopt;
  // A rank that was busy with something else at the time is not slow.
  for (int64_t i = 0; i < kRepeats && !surely_slow(times, hosts).empty(); ++i) {
    if (!measure({.count = first, .briefly = true})) return std::nullopt;
  }
  if (!measure({.count = all, .left_out = surely_slow(times, hosts)})) return std::nullopt;
  for (int64_t i = 0; i < kRepeats && factor > 0; ++i) {
    if (slow_ones(times, hosts, factor, 0).empty()) break;
    if (!measure({.count = all, .again = doubtful_pairs(times, hosts, factor)})) {
      return std::nullopt;
    }
  }
  return times;
}

std::vector<double> by_rank(const std::map<int64_t, double>& known, int64_t ranks) {
  std::vector<double> values;
  for (const auto& [rank, value] : known) values.push_back(value);
  std::vector<double> all(static_cast<size_t>(ranks), median(values));
  for (const auto& [rank, value] : known) all[static_cast<size_t>(rank)] = value;
  return all;
}

}  // namespace shardproof::sim::validate
