#include "sim/launch/call_matcher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "sim/match/agreement.h"

namespace shardproof::sim {

CallMatcher::Key CallMatcher::key_of(const CallLine& line) {
  if (!is_point_to_point(line)) return {line.group, line.sequence, -1, -1, 0};
  const bool sends = line.op == "send";
  return {line.group, line.sequence, sends ? line.group_rank : line.root,
          sends ? line.root : line.group_rank, line.tag};
}

std::vector<int64_t> CallMatcher::members_of(const CallLine& line) {
  if (!line.group_ranks) return {line.rank};
  if (!is_point_to_point(line)) return *line.group_ranks;
  return {line.rank, line.group_ranks->at(static_cast<size_t>(line.root))};
}

std::vector<int64_t> CallMatcher::missing_from(const std::vector<CallLine>& lines) const {
  std::vector<int64_t> missing;
  for (const int64_t member : members_of(lines.front())) {
    const bool here = std::any_of(lines.begin(), lines.end(),
                                  [&](const CallLine& line) { return line.rank == member; });
    if (!here) missing.push_back(member);
  }
  return missing;
}

std::optional<MatchFinding> CallMatcher::missing_after_end(const std::vector<CallLine>& lines) const {
  for (const int64_t rank : missing_from(lines)) {
    if (ended_.count(rank) == 0) continue;
    return MatchFinding{
        .code = "deadlock",
        .message = fmt::format("rank {} waits in {} for rank {}, which has ended without making that "
                               "call; let every member of the group make the same calls",
                               lines.front().rank, describe_line(lines.front()), rank),
        .ranks = {std::min(rank, lines.front().rank), std::max(rank, lines.front().rank)}};
  }
  return std::nullopt;
}

std::optional<MatchFinding> CallMatcher::called(CallLine line) {
  std::vector<CallLine>& lines = open_[key_of(line)];
  for (const CallLine& other : lines) {
    const auto what = difference(other, line);
    if (!what) {
      if (is_pairwise(line)) continue;
      break;
    }
    const auto [low, high] = std::minmax(other.rank, line.rank);
    return MatchFinding{.code = "disagreement",
                        .message = describe_disagreement(other, line, *what),
                        .ranks = {low, high}};
  }
  const Key key = key_of(line);
  lines.push_back(std::move(line));
  if (lines.size() == members_of(lines.front()).size()) {
    open_.erase(key);
    return std::nullopt;
  }
  return ended_.empty() ? std::nullopt : missing_after_end(lines);
}

std::optional<MatchFinding> CallMatcher::ended(int64_t rank) {
  ended_.insert(rank);
  for (const auto& [key, lines] : open_) {
    if (auto finding = missing_after_end(lines)) return finding;
  }
  return std::nullopt;
}

std::string CallMatcher::waits_for(int64_t rank) const {
  std::string text;
  for (const auto& [key, lines] : open_) {
    const auto own = std::find_if(lines.begin(), lines.end(),
                                  [&](const CallLine& line) { return line.rank == rank; });
    if (own == lines.end()) continue;
    const std::vector<int64_t> missing = missing_from(lines);
    text += fmt::format("{}{}: rank{} {} {} not called it", text.empty() ? "" : "; ",
                        describe_line(*own), missing.size() == 1 ? "" : "s",
                        fmt::join(missing, ", "), missing.size() == 1 ? "has" : "have");
  }
  return text;
}

std::set<int64_t> CallMatcher::awaited() const {
  std::set<int64_t> ranks;
  for (const auto& [key, lines] : open_) {
    for (const int64_t rank : missing_from(lines)) ranks.insert(rank);
  }
  return ranks;
}

}  // namespace shardproof::sim
