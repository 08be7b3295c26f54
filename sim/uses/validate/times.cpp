#include "sim/uses/validate/times.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/quantile.h"
#include "sim/uses/validate/groups.h"

namespace shardproof::sim::validate {
namespace {

constexpr int64_t kHostsToTell = 3;  // others, to tell a slow host from a slow link
constexpr int64_t kRanksToTell = 3;
constexpr double kSurelySlow = 20;  // medians

// The medians of pairs within hosts, or of those between them.
struct Medians {
  int64_t count = 0;
  double latency_us = 0, gb_per_s = 0;
};

bool is_between(const PairTime& pair, const Hosts& hosts) {
  return hosts.of(pair.a) != hosts.of(pair.b);
}

Medians medians_of(const Times& times, const Hosts& hosts, bool between) {
  std::vector<double> latencies, seconds_per_gb;
  for (const PairTime& pair : times.pairs) {
    if (is_between(pair, hosts) != between) continue;
    latencies.push_back(pair.latency_us);
    seconds_per_gb.push_back(1 / pair.gb_per_s);
  }
  // The lower median: of three links, two may belong to one slow host.
  const double slowness = median(seconds_per_gb);
  return {.count = static_cast<int64_t>(latencies.size()),
          .latency_us = median(latencies),
          .gb_per_s = slowness > 0 ? 1 / slowness : 0};
}

// How many medians a pair takes, for a short message and a long one.
struct Slowness {
  double latency, bandwidth;
  double worst() const { return std::max(latency, bandwidth); }
};

Slowness slowness_of(const PairTime& pair, const Medians& medians) {
  return {pair.latency_us / medians.latency_us, medians.gb_per_s / pair.gb_per_s};
}

nlohmann::json to_json(const Medians& medians) {
  return {
      {"pairs", medians.count}, {"latency_us", medians.latency_us}, {"gb_per_s", medians.gb_per_s}};
}

std::string times_text(const PairTime& pair, const Medians& medians) {
  return fmt::format(
      "{:.0f} us and {:.3g} GB/s between ranks {} and {}; the medians are {:.0f} us "
      "and {:.3g} GB/s",
      pair.latency_us, pair.gb_per_s, pair.a, pair.b, medians.latency_us, medians.gb_per_s);
}

using HostPair = std::pair<int64_t, int64_t>;

HostPair hosts_of_pair(const PairTime& pair, const Hosts& hosts) {
  return std::minmax(hosts.of(pair.a), hosts.of(pair.b));
}

ValidationFinding slow_finding(int64_t round, std::vector<std::string> hosts,
                               std::vector<int64_t> ranks, std::string message,
                               std::string link = "") {
  return {.stage = Stage::kTimes,
          .kind = FindingKind::kSlow,
          .round = round,
          .hosts = std::move(hosts),
          .ranks = std::move(ranks),
          .link = std::move(link),
          .message = std::move(message)};
}

class SlowLinks {
 public:
  SlowLinks(const Times& times, const Hosts& hosts, double factor, int64_t round)
      : hosts_(hosts), round_(round), between_(medians_of(times, hosts, true)) {
    for (const PairTime& pair : times.pairs) {
      if (!is_between(pair, hosts)) continue;
      const HostPair link = hosts_of_pair(pair, hosts);
      all_.insert(link);
      if (slowness_of(pair, between_).worst() > factor) slow_[link].push_back(pair);
    }
  }

  void add_hosts(std::set<int64_t>& slow_hosts, std::vector<ValidationFinding>& findings) {
    for (int64_t host = 0; host < hosts_.count(); ++host) {
      const auto touches = [&](const HostPair& link) {
        return link.first == host || link.second == host;
      };
      int64_t links = 0, slow = 0;
      const PairTime* first = nullptr;
      for (const HostPair& link : all_) links += touches(link) ? 1 : 0;
      for (const auto& [link, pairs] : slow_) {
        if (!touches(link)) continue;
        ++slow;
        first = &pairs.front();
      }
      if (links < kHostsToTell || 3 * slow < 2 * links) continue;
      slow_hosts.insert(host);
      findings.push_back(slow_finding(
          round_, {hosts_.name(host)}, hosts_.ranks_of(host),
          fmt::format("{} is slow: {} of its {} measured links are, with {}", hosts_.called(host),
                      slow, links, times_text(*first, between_))));
    }
  }

  void add_links(const std::set<int64_t>& slow_hosts, std::vector<ValidationFinding>& findings) {
    for (const auto& [link, pairs] : slow_) {
      if (slow_hosts.count(link.first) > 0 || slow_hosts.count(link.second) > 0) continue;
      const PairTime& pair = pairs.front();
      const std::string name =
          fmt::format("{} - {}", hosts_.name(link.first), hosts_.name(link.second));
      findings.push_back(slow_finding(
          round_, {hosts_.name(link.first), hosts_.name(link.second)}, {pair.a, pair.b},
          fmt::format("the link {} is slow: {}", name, times_text(pair, between_)), name));
    }
  }

 private:
  const Hosts& hosts_;
  int64_t round_;
  Medians between_;
  std::set<HostPair> all_;
  std::map<HostPair, std::vector<PairTime>> slow_;
};

// Whether these ranks of other hosts tell a slow rank, of so many hosts. Half of the others, too,
// since three may by chance be those of another room.
bool are_enough(const std::set<int64_t>& met, const Hosts& hosts, int64_t host_count) {
  std::set<int64_t> theirs;
  for (const int64_t rank : met) theirs.insert(hosts.of(rank));
  return std::ssize(met) >= kRanksToTell &&
         std::ssize(theirs) >= std::min(std::max(kHostsToTell, host_count / 2), host_count - 1);
}

}  // namespace

int64_t pairings_to_tell(const Hosts& hosts, const std::vector<int64_t>& pairings) {
  const int64_t size = std::ssize(hosts.of_rank);
  const std::set<int64_t> there(hosts.of_rank.begin(), hosts.of_rank.end());
  std::vector<std::set<int64_t>> met(hosts.of_rank.size());
  int64_t done = 0;
  for (const int64_t round : pairings) {
    ++done;
    bool all_met = true;
    for (int64_t rank = 0; rank < size; ++rank) {
      std::set<int64_t>& others = met[static_cast<size_t>(rank)];
      const int64_t partner = partner_of(rank, size, round);
      if (partner >= 0 && hosts.of(partner) != hosts.of(rank)) others.insert(partner);
      all_met = all_met && are_enough(others, hosts, std::ssize(there));
    }
    if (all_met) break;
  }
  return done;
}

std::vector<int64_t> surely_slow(const Times& times, const Hosts& hosts) {
  const double usual_us = medians_of(times, hosts, true).latency_us;
  std::map<int64_t, std::set<int64_t>> ranks_met;
  std::set<int64_t> there, quick;
  for (const PairTime& pair : times.pairs) {
    if (!is_between(pair, hosts)) continue;
    ranks_met[pair.a].insert(pair.b);
    ranks_met[pair.b].insert(pair.a);
    there.insert({hosts.of(pair.a), hosts.of(pair.b)});
    if (!(pair.latency_us > kSurelySlow * usual_us)) quick.insert({pair.a, pair.b});
  }
  std::vector<int64_t> slow;
  std::set<int64_t> not_slow;  // hosts with a rank that is not surely slow
  for (const auto& [rank, met] : ranks_met) {
    if (quick.count(rank) == 0 && are_enough(met, hosts, std::ssize(there))) {
      slow.push_back(rank);
    } else {
      not_slow.insert(hosts.of(rank));
    }
  }
  std::erase_if(slow, [&](int64_t rank) { return not_slow.contains(hosts.of(rank)); });
  return slow;
}

std::vector<RankPair> doubtful_pairs(const Times& times, const Hosts& hosts, double factor) {
  const Medians in_host = medians_of(times, hosts, false), between = medians_of(times, hosts, true);
  const std::vector<int64_t> sure = surely_slow(times, hosts);
  const auto is_sure = [&](int64_t rank) { return std::ranges::find(sure, rank) != sure.end(); };
  std::vector<RankPair> doubtful;
  for (const PairTime& pair : times.pairs) {
    const Medians& medians = is_between(pair, hosts) ? between : in_host;
    if (!(slowness_of(pair, medians).worst() > factor) || is_sure(pair.a) || is_sure(pair.b)) {
      continue;
    }
    doubtful.emplace_back(pair.a, pair.b);
  }
  return doubtful;
}

nlohmann::json to_json(const Times& times, const Hosts& hosts, size_t most) {
  const Medians in_host = medians_of(times, hosts, false), between = medians_of(times, hosts, true);
  const auto slowness = [&](const PairTime& pair) {
    return slowness_of(pair, is_between(pair, hosts) ? between : in_host);
  };
  std::vector<PairTime> pairs = times.pairs;
  std::ranges::stable_sort(pairs, [&](const PairTime& a, const PairTime& b) {
    return slowness(a).worst() > slowness(b).worst();
  });
  if (pairs.size() > most) pairs.resize(most);
  nlohmann::json list = nlohmann::json::array();
  for (const PairTime& pair : pairs) {
    list.push_back({{"a", pair.a},
                    {"b", pair.b},
                    {"latency_us", pair.latency_us},
                    {"gb_per_s", pair.gb_per_s},
                    {"latency_factor", slowness(pair).latency},
                    {"bandwidth_factor", slowness(pair).bandwidth}});
  }
  return {{"in_host", to_json(in_host)},
          {"between_hosts", to_json(between)},
          {"compute_ms", times.compute_ms},
          {"compute_median_ms", median(times.compute_ms)},
          {"pairs", list}};
}

std::string medians_text(const nlohmann::json& times) {
  std::string text;
  for (const char* where : {"in_host", "between_hosts"}) {
    const auto& one = times.at(where);
    if (one.at("pairs") == 0) continue;
    text += fmt::format("{}{:.0f} us, {:.3g} GB/s {}", text.empty() ? "" : "; ",
                        one.at("latency_us").get<double>(), one.at("gb_per_s").get<double>(),
                        std::string(where) == "in_host" ? "in a host" : "between hosts");
  }
  return text;
}

std::vector<ValidationFinding> slow_ones(const Times& times, const Hosts& hosts, double factor,
                                         int64_t round) {
  std::vector<ValidationFinding> findings;
  std::set<int64_t> slow_hosts;
  SlowLinks links(times, hosts, factor, round);
  links.add_hosts(slow_hosts, findings);
  const double compute = median(times.compute_ms);
  const auto ms_of = [&](int64_t rank) { return times.compute_ms[static_cast<size_t>(rank)]; };
  for (int64_t host = 0; host < hosts.count(); ++host) {
    std::vector<int64_t> slow = hosts.ranks_of(host);
    std::erase_if(slow, [&](int64_t rank) { return !(ms_of(rank) > factor * compute); });
    if (slow.empty() || !slow_hosts.insert(host).second) continue;
    const std::string who = slow.size() == 1 ? hosts.text(slow.front()) : hosts.called(host);
    findings.push_back(
        slow_finding(round, {hosts.name(host)}, slow,
                     fmt::format("{} is slow: {:.3g} ms for what takes {:.3g} ms in the median",
                                 who, ms_of(slow.front()), compute)));
  }
  links.add_links(slow_hosts, findings);
  const Medians in_host = medians_of(times, hosts, false);
  for (const PairTime& pair : times.pairs) {
    const int64_t host = hosts.of(pair.a);
    if (is_between(pair, hosts) || !(slowness_of(pair, in_host).worst() > factor)) continue;
    if (!slow_hosts.insert(host).second) continue;
    findings.push_back(slow_finding(
        round, {hosts.name(host)}, {pair.a, pair.b},
        fmt::format("{} is slow within: {}", hosts.called(host), times_text(pair, in_host))));
  }
  return findings;
}

}  // namespace shardproof::sim::validate
