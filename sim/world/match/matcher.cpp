// Matching of call lines, and the search for ranks that wait for each other.
#include "sim/world/match/matcher.h"

#include <algorithm>
#include <utility>

#include "sim/world/match/agreement.h"

namespace shardproof::sim {
namespace {

std::string names(const std::vector<int64_t>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i != 0) out += ", ";
    out += std::to_string(ranks[i]);
  }
  return out;
}

}  // namespace

Matcher::Matcher(int64_t world_size) : ranks_(static_cast<size_t>(world_size)) {}

Matcher::Channel Matcher::channel_of(const CallLine& line) {
  if (!is_point_to_point(line)) return {line.group, -1, -1, 0};
  const bool sends = line.op == "send";
  return {line.group, sends ? line.group_rank : line.root, sends ? line.root : line.group_rank,
          line.tag};
}

Matcher::Key Matcher::next_key(const CallLine& line) {
  Channel channel = channel_of(line);
  Position& at = ranks_[static_cast<size_t>(line.rank)].positions[channel];
  if (!line.waiting) {
    if (at.last && line.sequence <= *at.last) ++at.begun_anew;
    at.last = line.sequence;
  }
  return {std::move(channel), at.begun_anew, line.sequence};
}

std::vector<int64_t> Matcher::members_of(const CallLine& line) {
  const std::vector<int64_t> group = line.group_ranks ? *line.group_ranks : std::vector<int64_t>{};
  if (!is_point_to_point(line)) return group;
  const auto other = static_cast<size_t>(line.root);
  return {line.rank, other < group.size() ? group[other] : line.root};
}

std::vector<int64_t> Matcher::missing(const OpenCall& call) const {
  std::vector<int64_t> out;
  for (const int64_t member : call.members) {
    if (call.lines.count(member) == 0) out.push_back(member);
  }
  return out;
}

std::optional<MatchFinding> Matcher::first(std::optional<MatchFinding> finding) {
  told_ = finding.has_value();
  return finding;
}

std::optional<MatchFinding> Matcher::line(const CallLine& line) {
  if (line.rank < 0 || line.rank >= static_cast<int64_t>(ranks_.size())) return std::nullopt;
  if (!line.waiting) ranks_[static_cast<size_t>(line.rank)].last = line;
  return told_ ? std::nullopt : first(take(line));
}

std::optional<MatchFinding> Matcher::take(const CallLine& line) {
  const Key key = next_key(line);
  if (!line.waiting) {
    if (auto finding = enter(line, key)) return finding;
  }
  const bool waits = line.waiting || !line.asynchronous;
  if (!waits || open_.count(key) == 0) return std::nullopt;
  return block(line.rank, key);
}

std::optional<MatchFinding> Matcher::enter(const CallLine& line, const Key& key) {
  OpenCall& call = open_[key];
  if (call.members.empty()) call.members = members_of(line);
  if (auto finding = disagreement(call, line)) return finding;
  call.lines[line.rank] = line;
  if (call.lines.size() < call.members.size()) return std::nullopt;
  open_.erase(key);
  for (Rank& rank : ranks_) {
    if (rank.waits_in == key) rank.waits_in.reset();
  }
  return std::nullopt;
}

std::optional<MatchFinding> Matcher::disagreement(const OpenCall& call,
                                                  const CallLine& line) const {
  for (const auto& [rank, other] : call.lines) {
    const CallLine& low = rank < line.rank ? other : line;
    const CallLine& high = rank < line.rank ? line : other;
    const auto what = difference(low, high);
    if (!what && !is_pairwise(line)) return std::nullopt;
    if (!what) continue;
    return MatchFinding{.code = "disagreement",
                        .message = describe_disagreement(low, high, *what),
                        .ranks = {low.rank, high.rank}};
  }
  return std::nullopt;
}

std::optional<MatchFinding> Matcher::block(int64_t rank, const Key& key) {
  ranks_[static_cast<size_t>(rank)].waits_in = key;
  if (auto finding = find_ended_peer(rank)) return finding;
  return find_cycle(rank);
}

std::string Matcher::describe_wait(int64_t rank) const {
  const OpenCall& call = open_.at(*ranks_[static_cast<size_t>(rank)].waits_in);
  const CallLine& line = call.lines.at(rank);
  return "rank " + std::to_string(rank) + " waits for " + names(missing(call)) + " in " +
         describe_line(line) + " (call " + std::to_string(line.sequence) + ")";
}

std::optional<MatchFinding> Matcher::find_ended_peer(int64_t rank) const {
  const auto& key = ranks_[static_cast<size_t>(rank)].waits_in;
  if (!key) return std::nullopt;
  for (const int64_t member : missing(open_.at(*key))) {
    if (!ranks_[static_cast<size_t>(member)].ended) continue;
    return MatchFinding{
        .code = "deadlock",
        .message = "rank " + std::to_string(member) + " has ended; " + describe_wait(rank),
        .ranks = {std::min(rank, member), std::max(rank, member)}};
  }
  return std::nullopt;
}

// Depth first from the rank that blocked last: any new cycle goes through it.
std::optional<MatchFinding> Matcher::find_cycle(int64_t start) const {
  std::vector<int64_t> path{start};
  std::vector<bool> seen(ranks_.size(), false);
  const auto search = [&](const auto& self, int64_t rank) -> bool {
    const auto& key = ranks_[static_cast<size_t>(rank)].waits_in;
    if (!key) return false;
    for (const int64_t next : missing(open_.at(*key))) {
      if (next == start) return true;
      if (seen[static_cast<size_t>(next)]) continue;
      seen[static_cast<size_t>(next)] = true;
      path.push_back(next);
      if (self(self, next)) return true;
      path.pop_back();
    }
    return false;
  };
  if (!search(search, start)) return std::nullopt;
  std::sort(path.begin(), path.end());
  MatchFinding finding{.code = "deadlock", .message = "ranks wait for each other: ", .ranks = path};
  for (size_t i = 0; i < path.size(); ++i) {
    if (i != 0) finding.message += "; ";
    finding.message += describe_wait(path[i]);
  }
  return finding;
}

std::optional<MatchFinding> Matcher::find_leftover() const {
  for (const Rank& rank : ranks_) {
    if (!rank.ended) return std::nullopt;
  }
  if (open_.empty()) return std::nullopt;
  const OpenCall& call = open_.begin()->second;
  const CallLine& line = call.lines.begin()->second;
  return MatchFinding{.code = "never_waited",
                      .message = "all ranks have ended, but " + names(missing(call)) +
                                 " never entered " + describe_line(line) + " (call " +
                                 std::to_string(line.sequence) + "), which rank " +
                                 std::to_string(line.rank) + " started and never waited for",
                      .ranks = {line.rank}};
}

std::optional<MatchFinding> Matcher::ended(int64_t rank) {
  ranks_.at(static_cast<size_t>(rank)).ended = true;
  return told_ ? std::nullopt : first(take_end());
}

std::optional<MatchFinding> Matcher::take_end() const {
  for (size_t other = 0; other < ranks_.size(); ++other) {
    if (auto finding = find_ended_peer(static_cast<int64_t>(other))) return finding;
  }
  return find_leftover();
}

std::string Matcher::last_call(int64_t rank) const {
  const auto& last = ranks_.at(static_cast<size_t>(rank)).last;
  return last ? describe_line(*last) : "";
}

std::string Matcher::wait_of(int64_t rank) const {
  return ranks_.at(static_cast<size_t>(rank)).waits_in ? describe_wait(rank) : "";
}

bool Matcher::is_awaited(int64_t rank) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& other) {
    if (!other.waits_in) return false;
    const std::vector<int64_t> absent = missing(open_.at(*other.waits_in));
    return std::find(absent.begin(), absent.end(), rank) != absent.end();
  });
}

std::string Matcher::describe_waits() const {
  std::string out;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].waits_in) continue;
    if (!out.empty()) out += "; ";
    out += describe_wait(static_cast<int64_t>(rank));
  }
  return out;
}

}  // namespace shardproof::sim
