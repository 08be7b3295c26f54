// Matches call lines, and searches for ranks that wait for each other.
#include "sim/world/match/matcher.h"

#include <algorithm>
#include <set>

#include "sim/world/match/agreement.h"

namespace shardproof::sim::world {
namespace {

constexpr size_t kMostListed = 8;
constexpr const char* kSameCalls = "make every member enter the same calls in the same order";
constexpr const char* kWaitForAll = "wait() for every pending collective, on every member";

// "rank 1", "ranks 1, 2", "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 5 more"
std::string names(const std::vector<int64_t>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kMostListed; ++i) {
    if (i != 0) out += ", ";
    out += std::to_string(ranks[i]);
  }
  if (ranks.size() > kMostListed) {
    out += " and " + std::to_string(ranks.size() - kMostListed) + " more";
  }
  return out;
}

std::string numbered(const Call& line) {
  return describe(line) + " (call " + std::to_string(line.sequence) + ")";
}

bool contains(const std::vector<int64_t>& ranks, int64_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

Matcher::Matcher(int64_t world_size) : ranks_(static_cast<size_t>(world_size)) {}

// Excludes ranks that the world does not have.
std::vector<int64_t> Matcher::members_of(const Call& line) const {
  std::vector<int64_t> members;
  const std::vector<int64_t> group = line.group_ranks ? *line.group_ranks : members;
  if (is_message(line.op)) {
    const auto other = static_cast<size_t>(line.root);
    members = {line.rank, other < group.size() ? group[other] : line.root};
  } else {
    members = group;
  }
  const auto size = static_cast<int64_t>(ranks_.size());
  const auto outside = [size](int64_t rank) { return rank < 0 || rank >= size; };
  std::erase_if(members, outside);
  return members;
}

std::optional<Finding> Matcher::first(std::optional<Finding> finding) {
  reported_ = finding.has_value();
  return finding;
}

std::optional<Finding> Matcher::line(CallLine line) {
  if (line.rank < 0 || line.rank >= static_cast<int64_t>(ranks_.size())) return std::nullopt;
  if (line.waiting) return reported_ ? std::nullopt : first(begin_wait(line));
  const auto shared = std::make_shared<const Call>(std::move(line));
  of(shared->rank).last = shared;
  return reported_ ? std::nullopt : first(enter(shared));
}

// Finds the last call in flight with this number, because a recreated group counts from 0 again.
std::optional<Finding> Matcher::begin_wait(const Call& line) {
  auto& in_flight = of(line.rank).in_flight;
  const auto found = std::find_if(in_flight.rbegin(), in_flight.rend(), [&](const auto& call) {
    return std::get<2>(call.first) == line.sequence && std::get<0>(call.first) == channel_of(line);
  });
  if (found == in_flight.rend()) return std::nullopt;
  const CallKey key = found->first;
  in_flight.erase(std::next(found).base());
  const auto call = open_.find(key);
  if (call == open_.end()) return std::nullopt;
  return block(line.rank, call->second);
}

std::optional<Finding> Matcher::enter(const Line& line) {
  const CallKey key = of(line->rank).keys.next(*line);
  if (line->asynchronous) of(line->rank).in_flight.emplace_back(key, line);
  const auto [place, is_new] = open_.try_emplace(key);
  if (is_new) {
    place->second = std::make_shared<OpenCall>();
    place->second->number = ++calls_;
    place->second->missing = members_of(*line);
  }
  OpenCall& call = *place->second;
  of(line->rank).entered = call.number;
  if (auto finding = disagreement(call, *line)) return finding;
  call.lines[line->rank] = line;
  std::erase(call.missing, line->rank);
  if (!call.missing.empty()) {
    return line->asynchronous ? std::nullopt : block(line->rank, place->second);
  }
  for (const auto& [rank, own] : call.lines) {
    if (of(rank).waits_in.get() == &call) of(rank).waits_in = nullptr;
  }
  open_.erase(place);
  return std::nullopt;
}

std::optional<Finding> Matcher::disagreement(const OpenCall& call, const Call& line) const {
  for (const auto& [rank, other] : call.lines) {
    const Call& low = rank < line.rank ? *other : line;
    const Call& high = rank < line.rank ? line : *other;
    const auto what = difference(low, high);
    if (!what && !is_pairwise(line)) return std::nullopt;
    if (!what) continue;
    return Finding{.code = "disagreement",
                   .message = describe_disagreement(low, high, *what),
                   .ranks = {low.rank, high.rank},
                   .fix = kSameCalls};
  }
  return std::nullopt;
}

std::optional<Finding> Matcher::block(int64_t rank, OpenCallPtr call) {
  of(rank).waits_in = call;
  for (const int64_t peer : call->missing) {
    if (of(peer).ended) return waits_for_ended(rank, peer);
  }
  std::vector<int64_t> cycle = find_cycle(rank);
  if (cycle.empty()) return std::nullopt;
  return deadlock(std::move(cycle));
}

Finding Matcher::waits_for_ended(int64_t rank, int64_t peer) const {
  return {.code = "deadlock",
          .message = "rank " + std::to_string(peer) + " has ended; " + wait_of(rank),
          .ranks = {std::min(rank, peer), std::max(rank, peer)},
          .fix = kSameCalls};
}

// Finds the shortest cycle through `start`, the rank that blocked last, by a search in breadth.
std::vector<int64_t> Matcher::find_cycle(int64_t start) const {
  std::vector<int64_t> path{start}, previous(ranks_.size(), -1);
  std::set<const OpenCall*> seen;
  for (size_t i = 0; i < path.size(); ++i) {
    const OpenCall* call = of(path[i]).waits_in.get();
    if (call == nullptr || !seen.insert(call).second) continue;
    for (const int64_t next : call->missing) {
      int64_t& from = previous[static_cast<size_t>(next)];
      if (from < 0) {
        from = path[i];
        path.push_back(next);
      }
      if (next != start) continue;
      std::vector<int64_t> cycle{start};
      for (int64_t rank = from; rank != start; rank = previous[static_cast<size_t>(rank)]) {
        cycle.push_back(rank);
      }
      return cycle;
    }
  }
  return {};
}

Finding Matcher::deadlock(std::vector<int64_t> cycle) const {
  std::sort(cycle.begin(), cycle.end());
  std::string message = "ranks wait for each other: ";
  for (size_t i = 0; i < cycle.size() && i < kMostListed; ++i) {
    if (i != 0) message += "; ";
    message += wait_of(cycle[i]);
  }
  if (cycle.size() > kMostListed) {
    message += "; " + std::to_string(cycle.size() - kMostListed) + " more ranks wait";
  }
  return {.code = "deadlock", .message = message, .ranks = std::move(cycle), .fix = kSameCalls};
}

std::optional<int64_t> Matcher::first_waiter(int64_t rank) const {
  for (size_t other = 0; other < ranks_.size(); ++other) {
    const OpenCallPtr& call = ranks_[other].waits_in;
    if (call && contains(call->missing, rank)) return static_cast<int64_t>(other);
  }
  return std::nullopt;
}

std::optional<Finding> Matcher::ended(int64_t rank) {
  of(rank).ended = true;
  return reported_ ? std::nullopt : first(take_end(rank));
}

std::optional<Finding> Matcher::take_end(int64_t rank) const {
  const auto& in_flight = of(rank).in_flight;
  if (!in_flight.empty()) {
    const size_t more = in_flight.size() - 1;
    return Finding{.code = "never_waited",
                   .message = "rank " + std::to_string(rank) + " started " +
                              numbered(*in_flight.front().second) + " and never waited for it" +
                              (more > 0 ? ", nor for " + std::to_string(more) + " more" : ""),
                   .ranks = {rank},
                   .fix = kWaitForAll};
  }
  const auto waiter = first_waiter(rank);
  if (!waiter) return std::nullopt;
  return waits_for_ended(*waiter, rank);
}

int64_t Matcher::entered(int64_t rank) const { return of(rank).entered; }

std::string Matcher::last_call(int64_t rank) const {
  return of(rank).last ? describe(*of(rank).last) : "";
}

std::string Matcher::wait_of(int64_t rank) const {
  const OpenCallPtr& call = of(rank).waits_in;
  if (!call) return "";
  return "rank " + std::to_string(rank) + " waits for " + names(call->missing) + " in " +
         numbered(*call->lines.at(rank));
}

std::string Matcher::consequence(int64_t rank, const std::string& cause) const {
  const std::string waits = wait_of(rank);
  return waits.empty() ? cause : waits + "; " + cause;
}

}  // namespace shardproof::sim::world
