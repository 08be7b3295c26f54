#include "sim/uses/validate/endings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>

namespace shardproof::sim::validate {

namespace {

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
    finding.message = fmt::format("{} {}: {}", hosts.text(first.rank), first.kind,
                                  first.message.substr(0, first.message.find('\n')));
    if (those.size() > 1) {
      finding.message += fmt::format(" (and {} more ranks, on {})", those.size() - 1,
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
      const bool stopped =
          std::find(one.stopped.begin(), one.stopped.end(), host) != one.stopped.end();
      if (!stopped) rest.push_back(host);
    }
    if (rest.size() == hosts.size() || rest.empty()) break;
    for (const int64_t host : hosts) {
      if (std::find(rest.begin(), rest.end(), host) == rest.end()) left_out.push_back(host);
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
