#include "sim/uses/validate/blame.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <tuple>

#include "base/count_of.h"
#include "base/utf8.h"

namespace shardproof::sim::validate {
namespace {

using RankSet = std::set<int64_t>;

RankSet host_set(const Suspicion& suspicion, const Hosts& hosts) {
  RankSet found;
  for (const int64_t rank : suspicion.ranks) found.insert(hosts.of(rank));
  return found;
}

bool is_message_between_hosts(const Suspicion& suspicion, const Hosts& hosts) {
  return suspicion.evidence->sender >= 0 && host_set(suspicion, hosts).size() == 2;
}

// The ranks of this host that are under each of the suspicions.
std::vector<int64_t> common_ranks(const std::vector<Suspicion>& all, int64_t host,
                                  const Hosts& hosts) {
  std::vector<int64_t> common = hosts.ranks_of(host);
  for (const Suspicion& suspicion : all) {
    std::erase_if(common, [&](int64_t rank) {
      return std::ranges::find(suspicion.ranks, rank) == suspicion.ranks.end();
    });
  }
  return common;
}

// "lost: rank 3's elements were lost; every 8th element from 3 (lane 3 of 8) of send 3 -> 0 .."
std::string evidence_text(const std::vector<Suspicion>& explained) {
  const WrongResult& first = *explained.front().evidence;
  const std::string others =
      explained.size() == 1 ? "" : fmt::format("; {} results like it", explained.size() - 1);
  return fmt::format("{} of {}: {} ({}){}", first.pattern, first.call, first.damage, first.text,
                     others);
}

// A pattern that most of them have says more than that of the first.
void put_telling_first(std::vector<Suspicion>& explained) {
  const auto kind = [](const Suspicion& one) {
    const std::string& text = one.evidence->pattern;
    if (text.starts_with("every ")) return 0;
    // A whole row that is longer than a sector; part of one may look like a sector.
    if (text.starts_with("all ") && one.evidence->wrong > 32) return 1;
    return text.starts_with("the 32-byte") ? 2 : 3;
  };
  std::array<int64_t, 4> counts = {};
  for (const Suspicion& one : explained) ++counts.at(static_cast<size_t>(kind(one)));
  // Short rows show a single element of a lane, and by chance a lane where there is none.
  const auto often = [&](int64_t count) { return count > 1 && 8 * count >= std::ssize(explained); };
  const int64_t chosen = often(counts[0]) ? 0 : often(counts[1]) ? 1 : often(counts[2]) ? 2 : 3;
  std::stable_partition(explained.begin(), explained.end(),
                        [&](const Suspicion& one) { return kind(one) == chosen; });
}

std::optional<FindingKind> kind_of(ResultKind kind) {
  switch (kind) {
    case ResultKind::kFinished:
    case ResultKind::kAborted:
      return std::nullopt;
    case ResultKind::kDied:
      return FindingKind::kDied;
    case ResultKind::kHung:
    case ResultKind::kDeadlock:
      return FindingKind::kHung;
    case ResultKind::kRefused:
    case ResultKind::kBadInput:
      return FindingKind::kBadInput;
    default:
      return FindingKind::kThrew;
  }
}

}  // namespace

std::vector<Suspicion> suspicions_of(const std::vector<WrongResult>& evidence) {
  using Call = std::pair<std::string, std::vector<int64_t>>;
  std::map<Call, RankSet> receivers;  // of wrong results of a reduction
  std::map<int64_t, size_t> counts;   // of each receiver's wrong results, which have a limit
  for (const WrongResult& one : evidence) {
    ++counts[one.receiver];
    if (one.sender < 0) receivers[{one.call, one.group}].insert(one.receiver);
  }
  std::vector<Suspicion> suspicions;
  std::set<std::tuple<std::string, int64_t, int64_t>> seen;
  for (const WrongResult& one : evidence) {
    if (one.sender >= 0) {
      if (seen.insert({one.call, one.sender, one.receiver}).second) {
        suspicions.push_back({{one.sender, one.receiver}, &one});
      }
      continue;
    }
    const bool is_of_all = one.call.starts_with("all_reduce");
    if (!is_of_all && !one.sources.empty()) {  // each member has a part of its own
      RankSet ranks(one.sources.begin(), one.sources.end());
      ranks.insert(one.receiver);
      if (seen.insert({one.call, -2, one.receiver}).second) {
        suspicions.push_back({{ranks.begin(), ranks.end()}, &one});
      }
      continue;
    }
    const RankSet& who = receivers[{one.call, one.group}];
    const bool evidence_is_whole = std::ranges::all_of(one.group, [&](int64_t rank) {
      return who.count(rank) > 0 || counts[rank] < kMaxEvidence;
    });
    const bool some = evidence_is_whole && who.size() < one.group.size() && is_of_all;
    if (!seen.insert({one.call, -1, one.group.front()}).second) continue;
    if (some) {
      suspicions.push_back({{who.begin(), who.end()}, &one});
    } else {
      suspicions.push_back({one.sources.empty() ? one.group : one.sources, &one});
    }
  }
  return suspicions;
}

std::vector<ValidationFinding> blame(Stage stage, int64_t round,
                                     const std::vector<WrongResult>& evidence, const Hosts& hosts) {
  std::vector<Suspicion> left = suspicions_of(evidence);
  std::vector<ValidationFinding> findings;
  while (!left.empty()) {
    std::map<int64_t, size_t> explains;
    for (const Suspicion& one : left) {
      for (const int64_t host : host_set(one, hosts)) ++explains[host];
    }
    size_t most = 0;
    for (const auto& [host, count] : explains) most = std::max(most, count);
    std::vector<int64_t> likely;
    for (const auto& [host, count] : explains) {
      if (count == most) likely.push_back(host);
    }
    const int64_t chosen = likely.front();
    std::vector<Suspicion> explained;
    std::erase_if(left, [&](const Suspicion& one) {
      if (host_set(one, hosts).count(chosen) == 0) return false;
      explained.push_back(one);
      return true;
    });
    // Where several hosts explain as much, only what all of them explain counts against them.
    std::erase_if(likely, [&](int64_t host) {
      return !std::ranges::all_of(
          explained, [&](const Suspicion& one) { return host_set(one, hosts).count(host) > 0; });
    });
    put_telling_first(explained);
    ValidationFinding finding{.stage = stage, .kind = FindingKind::kValues, .round = round};
    finding.pattern = explained.front().evidence->pattern;
    for (const int64_t host : likely) finding.hosts.push_back(hosts.name(host));
    const bool link =
        likely.size() == 2 && std::ranges::all_of(explained, [&](const Suspicion& one) {
          return is_message_between_hosts(one, hosts);
        });
    if (likely.size() == 1) {
      finding.ranks = common_ranks(explained, chosen, hosts);
      // All ranks of a host, or none of them alone: the host.
      const bool one_of_many = finding.ranks.size() == 1;
      const std::string who = one_of_many ? hosts.text(finding.ranks[0]) : hosts.called(chosen);
      if (!one_of_many) finding.ranks = hosts.ranks_of(chosen);
      finding.message = fmt::format("{} spoils data: {}", who, evidence_text(explained));
    } else if (link) {
      finding.link = fmt::format("{} - {}", finding.hosts[0], finding.hosts[1]);
      finding.message = fmt::format(
          "the link {} spoils data, or one end of it does and no other call showed it: {}",
          finding.link, evidence_text(explained));
    } else {
      std::vector<std::string> called;
      for (const int64_t host : likely) called.push_back(hosts.called(host));
      finding.message = fmt::format("one of {} spoils data: {}", fmt::join(called, ", "),
                                    evidence_text(explained));
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<int64_t> hosts_that_stopped(const std::vector<RankEnding>& endings,
                                        const Hosts& hosts) {
  std::set<int64_t> stopped;
  for (const RankEnding& ending : endings) {
    const bool did = ending.kind == ResultKind::kDied || ending.kind == ResultKind::kHung;
    if (did) stopped.insert(hosts.of(ending.rank));
  }
  return {stopped.begin(), stopped.end()};
}

std::vector<ValidationFinding> findings_of_endings(const std::vector<RankEnding>& endings,
                                                   Stage stage, int64_t round, const Hosts& hosts,
                                                   bool& lost) {
  std::map<FindingKind, std::vector<const RankEnding*>> by_kind;
  const RankEnding* aborted = nullptr;
  for (const RankEnding& ending : endings) {
    if (const auto kind = kind_of(ending.kind)) by_kind[*kind].push_back(&ending);
    if (ending.kind == ResultKind::kAborted) aborted = &ending;
  }
  std::vector<ValidationFinding> findings;
  for (const auto& [kind, those] : by_kind) {
    ValidationFinding finding{.stage = stage, .kind = kind, .round = round};
    std::set<int64_t> where;
    for (const RankEnding* ending : those) {
      finding.ranks.push_back(ending->rank);
      where.insert(hosts.of(ending->rank));
    }
    for (const int64_t host : where) finding.hosts.push_back(hosts.name(host));
    const RankEnding& first = *those.front();
    finding.message =
        fmt::format("{} {}: {}", hosts.text(first.rank), first.kind, first_line(first.message));
    if (those.size() > 1) {
      finding.message +=
          fmt::format(" (and {}, on {})", count_of(std::ssize(those) - 1, "more rank"),
                      fmt::join(finding.hosts, ", "));
    }
    if (!first.last_call.empty()) {
      finding.message += fmt::format("; its last call was {}", first.last_call);
    }
    findings.push_back(std::move(finding));
  }
  if (findings.empty() && aborted != nullptr) {
    lost = true;
    findings.push_back(
        {.stage = stage, .kind = FindingKind::kDied, .round = round, .message = aborted->message});
  }
  return findings;
}

namespace {

using HostNumbers = std::vector<int64_t>;
using RunHosts = std::function<HostsRun(const HostNumbers&)>;

void append(HostNumbers& to, const HostNumbers& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Without the last run of those that remain; `in_halves`: whether they did not run together.
HostsTried tried(HostNumbers hosts, const RunHosts& run, bool& in_halves) {
  HostNumbers left_out;
  while (!hosts.empty()) {
    const HostsRun one = run(hosts);
    if (one.finished) return {hosts, left_out};
    HostNumbers rest;
    for (const int64_t host : hosts) {
      const bool stopped = std::ranges::find(one.stopped, host) != one.stopped.end();
      if (!stopped) rest.push_back(host);
    }
    if (rest.size() == hosts.size() || rest.empty()) break;
    for (const int64_t host : hosts) {
      if (std::ranges::find(rest, host) == rest.end()) left_out.push_back(host);
    }
    hosts = rest;
  }
  if (hosts.size() < 2) {
    append(left_out, hosts);
    return {{}, left_out};
  }
  in_halves = true;
  const auto middle = hosts.begin() + static_cast<std::ptrdiff_t>((hosts.size() + 1) / 2);
  HostsTried all{{}, left_out};
  for (const HostNumbers& half :
       {HostNumbers(hosts.begin(), middle), HostNumbers(middle, hosts.end())}) {
    const HostsTried one = tried(half, run, in_halves);
    append(all.finished, one.finished);
    append(all.left_out, one.left_out);
  }
  return all;
}

}  // namespace

HostsTried run_on_hosts(std::vector<int64_t> hosts, const RunHosts& run) {
  bool in_halves = false;
  HostsTried all = tried(std::move(hosts), run, in_halves);
  // If no host was left out, they are known not to finish together.
  if (in_halves && all.finished.size() > 1 && !all.left_out.empty()) run(all.finished);
  return all;
}

}  // namespace shardproof::sim::validate
