// Who has entered which call, over all ranks of a world: from lines in any order to findings.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "sim/world/match/call_line.h"

namespace shardproof::sim {

struct MatchFinding {
  std::string code;            // disagreement | deadlock | never_waited
  std::string message;         // with both ranks and both labels
  std::vector<int64_t> ranks;  // that it names, ascending
};

// Fed by the control process with the lines of all ranks. Calls are matched by (group, call
// number); send and recv by (group, from, to, tag, number). Where a rank counts a group's calls
// from the beginning again, it has put the group together anew (a second life in one case): calls
// from there on match only those that others make after theirs. Only the first finding is told, and
// who waits for whom stands as it was then: lines that were already under way only change
// last_call.
//
//   disagreement   two members made different calls (agreement.h)
//   deadlock       a cycle of ranks that wait for each other, over any groups; or a rank waits
//                  for one that has ended
//   never_waited   all ranks have ended and a call did not get all its members
//
// A rank waits in a synchronous call from its line until the last member's, and in an asynchronous
// one from its `waiting` line. One line costs a few microseconds (no more than members + open
// calls).
class Matcher {
 public:
  explicit Matcher(int64_t world_size);

  // The first finding, from the line that shows it; nothing before it and nothing after.
  std::optional<MatchFinding> line(const CallLine& line);
  // The rank returned. (A rank that died or threw is a finding by itself; do not tell.)
  std::optional<MatchFinding> ended(int64_t rank);

  // "all_reduce(sum) tp[0,1] [4] float64 'label'": the last call that the rank entered, "" for
  // none.
  std::string last_call(int64_t rank) const;
  // The one call that the rank waits in, with whom it waits for; "" when it waits for nobody.
  std::string wait_of(int64_t rank) const;
  // Some rank waits for this one.
  bool is_awaited(int64_t rank) const;
  // Who waits where now, for a watchdog's report: "rank 0 waits for rank 1 in ..., rank 2 ...".
  std::string describe_waits() const;

 private:
  // Group, and of send and recv from, to and tag: what calls are numbered in.
  using Channel = std::tuple<std::string, int64_t, int64_t, int64_t>;
  // With how often it was begun anew, and the number.
  using Key = std::tuple<Channel, int64_t, int64_t>;
  struct Position {
    std::optional<int64_t> last = {};  // number of the last call
    int64_t begun_anew = 0;
  };
  struct OpenCall {
    std::vector<int64_t> members;       // global ranks
    std::map<int64_t, CallLine> lines;  // by global rank, of those that came
  };
  struct Rank {
    std::optional<CallLine> last;
    std::optional<Key> waits_in;
    std::map<Channel, Position> positions;
    bool ended = false;
  };

  static Channel channel_of(const CallLine& line);
  Key next_key(const CallLine& line);  // once per line
  static std::vector<int64_t> members_of(const CallLine& line);
  std::vector<int64_t> missing(const OpenCall& call) const;
  std::string describe_wait(int64_t rank) const;
  std::optional<MatchFinding> first(std::optional<MatchFinding> finding);
  std::optional<MatchFinding> take(const CallLine& line);
  std::optional<MatchFinding> take_end() const;
  std::optional<MatchFinding> enter(const CallLine& line, const Key& key);
  std::optional<MatchFinding> disagreement(const OpenCall& call, const CallLine& line) const;
  std::optional<MatchFinding> block(int64_t rank, const Key& key);
  std::optional<MatchFinding> find_ended_peer(int64_t rank) const;
  std::optional<MatchFinding> find_cycle(int64_t rank) const;
  std::optional<MatchFinding> find_leftover() const;

  std::vector<Rank> ranks_;
  std::map<Key, OpenCall> open_;
  bool told_ = false;  // the first finding
};

}  // namespace shardproof::sim
