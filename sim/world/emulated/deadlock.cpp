// Who waits for whom, in words.
#include <algorithm>
#include <set>

#include "sim/world/emulated/world_state.h"

namespace shardproof::sim {
namespace {

constexpr size_t kMaxRanksListed = 8;

size_t position_of(const Meeting& meeting, int64_t rank) {
  const auto found = std::find(meeting.members->begin(), meeting.members->end(), rank);
  return static_cast<size_t>(found - meeting.members->begin());
}

// Follows the first missing member from each rank until a rank comes twice: the ranks of that
// cycle, or the chain to a rank that has ended.
std::vector<int64_t> find_cycle(const std::vector<std::unique_ptr<RankState>>& ranks,
                                int64_t start) {
  std::vector<int64_t> path;
  int64_t rank = start;
  while (true) {
    const auto seen = std::find(path.begin(), path.end(), rank);
    if (seen != path.end()) return {seen, path.end()};
    const RankState& state = *ranks[static_cast<size_t>(rank)];
    if (!state.blocked_on) return path;
    path.push_back(rank);
    const std::vector<int64_t> missing = missing_members(*state.blocked_on);
    if (missing.empty()) return path;
    rank = missing.front();
  }
}

}  // namespace

std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kMaxRanksListed; ++i) {
    if (i != 0) out += ", ";
    out += std::to_string(ranks[i]);
  }
  if (ranks.size() > kMaxRanksListed) {
    out += " and " + std::to_string(ranks.size() - kMaxRanksListed) + " more";
  }
  return out;
}

std::vector<int64_t> missing_members(const Meeting& meeting) {
  std::vector<int64_t> missing;
  for (size_t i = 0; i < meeting.members->size(); ++i) {
    if (!meeting.arrived[i]) missing.push_back((*meeting.members)[i]);
  }
  return missing;
}

std::string describe_wait(const Meeting& meeting, int64_t rank) {
  const CallLine& line = meeting.lines[position_of(meeting, rank)];
  return "rank " + std::to_string(rank) + " waits for " + ranks_text(missing_members(meeting)) +
         " in " + describe_line(line) + " (call " + std::to_string(line.sequence) + ")";
}

WorldFailure describe_deadlock(const std::vector<std::unique_ptr<RankState>>& ranks) {
  std::vector<int64_t> blocked;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank]->blocked_on) blocked.push_back(static_cast<int64_t>(rank));
  }
  std::vector<int64_t> cycle = find_cycle(ranks, blocked.front());
  std::sort(cycle.begin(), cycle.end());
  WorldFailure failure{.code = "deadlock", .message = "every live rank waits: ", .ranks = cycle};
  size_t listed = 0;
  for (const int64_t rank : cycle) {
    if (listed == kMaxRanksListed) break;
    if (listed++ != 0) failure.message += "; ";
    failure.message += describe_wait(*ranks[static_cast<size_t>(rank)]->blocked_on, rank);
  }
  if (blocked.size() > listed) {
    failure.message += "; " + std::to_string(blocked.size() - listed) + " more ranks wait";
  }
  return failure;
}

}  // namespace shardproof::sim
