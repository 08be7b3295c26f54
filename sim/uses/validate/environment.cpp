#include "sim/uses/validate/environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/quantile.h"
#include "sim/uses/validate/times.h"

namespace shardproof::sim::validate {
namespace {

const std::set<std::string> kOwnFacts = {"host", "boot", "addresses"};

std::string value_of(const Facts& facts, const std::string& name) {
  const auto found = facts.find(name);
  return found == facts.end() ? "" : found->second;
}

}  // namespace

std::vector<OddFact> odd_facts(const std::vector<Facts>& facts) {
  std::set<std::string> names;
  for (const Facts& host : facts) {
    for (const auto& [name, value] : host) names.insert(name);
  }
  std::vector<OddFact> odd;
  for (const std::string& name : names) {
    if (kOwnFacts.count(name) > 0) continue;
    std::map<std::string, size_t> counts;
    for (const Facts& host : facts) ++counts[value_of(host, name)];
    const auto usual =
        std::max_element(counts.begin(), counts.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (2 * usual->second <= facts.size()) continue;  // no value is the usual one
    for (size_t host = 0; host < facts.size(); ++host) {
      const std::string value = value_of(facts[host], name);
      if (value == usual->first) continue;
      odd.push_back({static_cast<int64_t>(host), name, value, usual->first});
    }
  }
  return odd;
}

std::vector<ValidationFinding> clocks_off(const std::vector<ClockOffset>& by_rank,
                                          const Hosts& hosts, double limit_s) {
  std::vector<double> offsets;
  for (const ClockOffset& one : by_rank) offsets.push_back(one.seconds);
  const double usual = median(offsets);
  std::vector<ValidationFinding> findings;
  std::set<int64_t> named;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const double off = by_rank[rank].seconds - usual;
    const int64_t host = hosts.of(static_cast<int64_t>(rank));
    if (!(std::abs(off) - by_rank[rank].uncertainty > limit_s)) continue;
    if (!named.insert(host).second) continue;
    findings.push_back(
        {.stage = Stage::kEnvironment,
         .kind = FindingKind::kClock,
         .hosts = {hosts.name(host)},
         .ranks = hosts.ranks_of(host),
         .message = fmt::format("the clock of {} is {:.3f} s {} the median (uncertainty "
                                "{:.3f} s, limit {:g} s)",
                                hosts.called(host), std::abs(off), off > 0 ? "ahead of" : "behind",
                                by_rank[rank].uncertainty, limit_s)});
  }
  return findings;
}

nlohmann::json environment_json(const std::vector<Facts>& facts, const Hosts& hosts,
                                const std::vector<ClockOffset>& by_rank) {
  nlohmann::json list = nlohmann::json::array();
  for (int64_t host = 0; host < hosts.count(); ++host) {
    const std::vector<int64_t> ranks = hosts.ranks_of(host);
    nlohmann::json one = {{"name", hosts.name(host)},
                          {"ranks", ranks},
                          {"facts", facts[static_cast<size_t>(host)]},
                          {"odd", nlohmann::json::array()}};
    if (!by_rank.empty()) {
      const ClockOffset& clock = by_rank[static_cast<size_t>(ranks.front())];
      one["clock_offset_s"] = clock.seconds;
      one["clock_uncertainty_s"] = clock.uncertainty;
    }
    list.push_back(std::move(one));
  }
  for (const OddFact& odd : odd_facts(facts)) {
    list[static_cast<size_t>(odd.host)]["odd"].push_back(
        {{"fact", odd.fact}, {"value", odd.value}, {"usual", odd.usual}});
  }
  return {{"hosts", list}};
}

}  // namespace shardproof::sim::validate
