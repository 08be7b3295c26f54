// Matches the calls of process ranks centrally: every rank sends its line before it calls, so that
// disagreements, missing members and who waits for whom are known without any extra collective.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "sim/match/call_line.h"

namespace shardproof::sim {

struct MatchFinding {
  std::string code;            // disagreement | deadlock
  std::string message;
  std::vector<int64_t> ranks;  // that it names, ascending
};

class CallMatcher {
 public:
  // A rank is about to make this call. The finding, if it cannot succeed: another member made a
  // different call, or has ended without making it.
  std::optional<MatchFinding> called(CallLine line);
  // The rank has returned from its case. The finding, if somebody waits for it.
  std::optional<MatchFinding> ended(int64_t rank);

  // What this rank has called and its peers have not, all of it: "all_reduce(sum) tp[0,1] ... :
  // rank 1 has not called it". "" when it waits for nobody.
  std::string waits_for(int64_t rank) const;
  // Ranks that some other rank waits for.
  std::set<int64_t> awaited() const;

 private:
  // Group, sequence; and source, destination and tag of a message (-1, -1, 0 for collectives).
  using Key = std::tuple<std::string, int64_t, int64_t, int64_t, int64_t>;
  static Key key_of(const CallLine& line);
  static std::vector<int64_t> members_of(const CallLine& line);
  std::vector<int64_t> missing_from(const std::vector<CallLine>& lines) const;
  std::optional<MatchFinding> missing_after_end(const std::vector<CallLine>& lines) const;

  std::map<Key, std::vector<CallLine>> open_;  // calls that not all members have made
  std::set<int64_t> ended_;
};

}  // namespace shardproof::sim
