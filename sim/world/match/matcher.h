// Who has entered which call, over all ranks of a world: from lines in any order to findings.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/world/match/call_line.h"
#include "sim/world/match/finding.h"

namespace shardproof::sim {

// Hears of the calls of all ranks: on the emulated world under the world's lock, of processes in
// control, from their lines. Calls are matched by (group, call number); send and recv by (group,
// from, to, tag, number). Where a rank counts a group's calls from the beginning again, it has put
// the group together anew (a second life in one case): calls from there on match only those that
// others make after theirs. Only the first finding is told, and who waits for whom stands as it was
// then: lines that were already under way only change last_call.
//
//   disagreement   two members made different calls (agreement.h)
//   deadlock       a cycle of ranks that wait for each other, over any groups; or a rank waits
//                  for one that has ended
//   never_waited   a rank has ended and has not waited for an asynchronous call
//
// A rank waits in a synchronous call from its line until the last member's, and in an asynchronous
// one from its `waiting` line. One line costs a few microseconds (no more than members + open
// calls).
class Matcher {
 public:
  explicit Matcher(int64_t world_size);

  // The first finding, from the line that shows it; nothing before it and nothing after.
  std::optional<Finding> line(CallLine line);
  // The rank returned. (A rank that died or threw is a finding by itself; do not tell.)
  std::optional<Finding> ended(int64_t rank);

  // The number of the call that the rank entered last: one number for all members of a call.
  int64_t entered(int64_t rank) const;
  // "all_reduce(sum) tp[0,1] [4] float64 'label'": the last call that the rank entered, "" for
  // none.
  std::string last_call(int64_t rank) const;
  // The one call that the rank waits in, with whom it waits for; "" when it waits for nobody.
  std::string wait_of(int64_t rank) const;
  // Why a rank that is no cause was stopped: where it waits, if it does, and the cause.
  std::string consequence(int64_t rank, const std::string& cause) const;
  // Some rank waits for this one.
  bool is_awaited(int64_t rank) const { return first_waiter(rank).has_value(); }

 private:
  using Line = std::shared_ptr<const Call>;
  // Group, and of send and recv from, to and tag: what calls are numbered in.
  using Channel = std::tuple<std::string, int64_t, int64_t, int64_t>;
  // With how often it was begun anew, and the number.
  using Key = std::tuple<Channel, int64_t, int64_t>;
  struct Position {
    std::optional<int64_t> last = {};  // number of the last call
    int64_t begun_anew = 0;
  };
  struct OpenCall {
    int64_t number = 0;
    std::vector<int64_t> missing;   // members that have not come, in group order; global ranks
    std::map<int64_t, Line> lines;  // by global rank, of those that came
  };
  using OpenCallPtr = std::shared_ptr<const OpenCall>;
  struct Rank {
    Line last;
    int64_t entered = 0;
    OpenCallPtr waits_in;                         // null: it does not wait
    std::vector<std::pair<Key, Line>> in_flight;  // asynchronous, in the order of their start
    std::map<Channel, Position> positions;
    bool ended = false;
  };

  Rank& of(int64_t rank) { return ranks_.at(static_cast<size_t>(rank)); }
  const Rank& of(int64_t rank) const { return ranks_.at(static_cast<size_t>(rank)); }
  static Channel channel_of(const Call& line);
  Key next_key(const Call& line);  // once per call
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
  std::map<Key, std::shared_ptr<OpenCall>> open_;
  int64_t calls_ = 0;  // that were opened
  bool told_ = false;  // the first finding
};

}  // namespace shardproof::sim
