// Matches the calls of all ranks of a world, and finds errors in them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/call_keys.h"
#include "sim/world/match/agreement.h"
#include "sim/world/match/call_line.h"

namespace shardproof::sim::world {

// What is known of a rank that hangs and waits for no other one.
inline constexpr const char* kWaitsForNobody =
    "it waits for no other rank's call: it computes, or its last call, which all members have "
    "entered, has not ended";

// Gets the calls of all ranks: in the emulated world under the world's lock, in control from the
// lines of processes. Calls are matched by (group, call number), messages by (group, from, to, tag,
// number). A rank whose numbers restart has recreated the group (a second life in one case): its
// calls then match only calls of others after the same event. Only the first finding is reported,
// and the state of waiting ranks is kept as it was then; later lines only change last_call.
//   disagreement   two members made different calls (agreement.h)
//   deadlock       ranks wait for each other in a cycle, over any groups, or for an ended rank
//   never_waited   a rank has ended and has not waited for an asynchronous call
//
// A rank waits in a synchronous call from its line until the last member's, and in an asynchronous
// one from its `waiting` line. A line costs some microseconds (at most members + open calls).
class Matcher {
 public:
  explicit Matcher(int64_t world_size);

  // Returns the first finding, at the line that shows it, and nothing at all others.
  std::optional<Finding> line(CallLine line);
  // Called when a rank has returned, but not if it died or threw, which is a finding already.
  std::optional<Finding> ended(int64_t rank);

  // The number of the rank's last call, which is equal for all members of the call.
  int64_t entered(int64_t rank) const;
  // "all_reduce(sum) tp[0,1] [4] float64 'label'": the rank's last call, or "".
  std::string last_call(int64_t rank) const;
  // The call in which the rank waits, and the ranks for which it waits; "": it does not wait.
  std::string wait_of(int64_t rank) const;
  // The reason why a rank that is not a cause was stopped: its wait, if any, and the cause.
  std::string consequence(int64_t rank, const std::string& cause) const;
  // Whether some rank below `end` waits for this one.
  bool is_awaited(int64_t rank, int64_t end) const {
    const std::optional<int64_t> waiter = first_waiter(rank);
    return waiter && *waiter < end;
  }

 private:
  using Line = std::shared_ptr<const Call>;
  struct OpenCall {
    int64_t number = 0;
    std::vector<int64_t> missing;   // global ranks that have not made the call, in group order
    std::map<int64_t, Line> lines;  // of the other members, by global rank
  };
  using OpenCallPtr = std::shared_ptr<const OpenCall>;
  struct Rank {
    Line last;
    int64_t entered = 0;
    OpenCallPtr waits_in;                             // null: it does not wait
    std::vector<std::pair<CallKey, Line>> in_flight;  // asynchronous, in the order of their start
    CallKeys keys;
    bool ended = false;
  };

  Rank& of(int64_t rank) { return ranks_.at(static_cast<size_t>(rank)); }
  const Rank& of(int64_t rank) const { return ranks_.at(static_cast<size_t>(rank)); }
  std::vector<int64_t> members_of(const Call& line) const;
  std::optional<int64_t> first_waiter(int64_t rank) const;  // the lowest rank that waits for it
  std::optional<Finding> first(std::optional<Finding> finding);
  std::optional<Finding> enter(const Line& line);
  std::optional<Finding> begin_wait(const Call& line);
  std::optional<Finding> take_end(int64_t rank) const;
  std::optional<Finding> disagreement(const OpenCall& call, const Call& line) const;
  std::optional<Finding> block(int64_t rank, OpenCallPtr call);
  Finding waits_for_ended(int64_t rank, int64_t peer) const;
  std::vector<int64_t> find_cycle(int64_t rank) const;
  Finding deadlock(std::vector<int64_t> cycle) const;

  std::vector<Rank> ranks_;
  std::map<CallKey, std::shared_ptr<OpenCall>> open_;
  int64_t calls_ = 0;      // the number of calls opened
  bool reported_ = false;  // whether the first finding was returned
};

}  // namespace shardproof::sim::world
