#include "sim/uses/validate/finding.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardproof::sim::validate {

std::vector<int64_t> Hosts::ranks_of(int64_t host) const {
  std::vector<int64_t> ranks;
  for (size_t rank = 0; rank < of_rank.size(); ++rank) {
    if (of_rank[rank] == host) ranks.push_back(static_cast<int64_t>(rank));
  }
  return ranks;
}

std::string Hosts::text(int64_t rank) const {
  return fmt::format("rank {} on {}", rank, name(of(rank)));
}

std::string Hosts::call(const std::string& name) {
  return name.starts_with("host") ? name : "host " + name;
}

Hosts Hosts::of_processes(const std::vector<int64_t>& processes) const {
  Hosts part{.names = names};
  for (const int64_t process : processes) part.of_rank.push_back(of(process));
  return part;
}

Hosts hosts_of(const std::vector<std::pair<std::string, std::string>>& machines,
               int64_t ranks_per_host) {
  Hosts hosts;
  if (ranks_per_host > 0) {
    for (size_t rank = 0; rank < machines.size(); ++rank) {
      const auto host = static_cast<int64_t>(rank) / ranks_per_host;
      if (host == hosts.count()) hosts.names.push_back(fmt::format("host{}", host));
      hosts.of_rank.push_back(host);
    }
    return hosts;
  }
  std::vector<std::pair<std::string, std::string>> known;
  for (const auto& one : machines) {
    const auto found = std::find(known.begin(), known.end(), one);
    hosts.of_rank.push_back(found - known.begin());
    if (found == known.end()) known.push_back(one);
  }
  for (size_t i = 0; i < known.size(); ++i) {
    const auto alike = [&](const auto& other) { return other.first == known[i].first; };
    const auto end = known.begin() + static_cast<std::ptrdiff_t>(i);
    const bool alone = std::count_if(known.begin(), known.end(), alike) == 1;
    const auto number = std::count_if(known.begin(), end, alike) + 1;
    hosts.names.push_back(alone ? known[i].first : fmt::format("{} ({})", known[i].first, number));
  }
  return hosts;
}

int exit_status_of(const std::vector<ValidationFinding>& findings) {
  const auto any = [&](std::initializer_list<FindingKind> kinds) {
    return std::any_of(findings.begin(), findings.end(), [&](const ValidationFinding& finding) {
      return std::find(kinds.begin(), kinds.end(), finding.kind) != kinds.end();
    });
  };
  if (any({FindingKind::kBadInput})) return 2;
  if (any({FindingKind::kDied, FindingKind::kHung, FindingKind::kThrew, FindingKind::kSlow,
           FindingKind::kClock})) {
    return 3;
  }
  return any({FindingKind::kValues, FindingKind::kDigest}) ? 1 : 0;
}

}  // namespace shardproof::sim::validate
