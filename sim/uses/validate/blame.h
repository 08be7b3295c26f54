// Who spoils data: the host, rank or link that explains what all ranks found wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/case/rank_ending.h"
#include "sim/uses/validate/exchange.h"
#include "sim/uses/validate/finding.h"

namespace shardproof::sim::validate {

// The ranks that one wrong result may come from.
//
//   a moved element          its sender and its receiver
//   a known addend           its rank; of what one rank alone receives, that one too
//   an all_reduce that only some members have wrong    those
//   another reduction        every member
struct Suspicion {
  std::vector<int64_t> ranks;
  const WrongResult* evidence = nullptr;  // the first of them
};
// One for each call and, of moved elements, sender and receiver.
std::vector<Suspicion> suspicions_of(const std::vector<WrongResult>& evidence);

// One finding for each host or link that it takes to explain all of it, the one that explains most
// first.
std::vector<ValidationFinding> blame(Stage stage, int64_t round,
                                     const std::vector<WrongResult>& evidence, const Hosts& hosts);

// Ranks that did not finish a stage: whose fault it is that it ended.

// One finding for each kind of ending other than finished and aborted; none when all finished.
// `lost` is set when all ranks are as aborted: no world could be made for them.
std::vector<ValidationFinding> findings_of_endings(const std::vector<RankEnding>& endings,
                                                   Stage stage, int64_t round, const Hosts& hosts,
                                                   bool& lost);

// The hosts of ranks that died or hung. Others may have waited for them, thrown because they were
// gone, or been in a deadlock of which nobody knows the cause.
std::vector<int64_t> hosts_that_stopped(const std::vector<RankEnding>& endings, const Hosts& hosts);

// How a stage goes on around hosts that die or hang in it: without those that are named, and where
// nobody knows which one it was, on halves of the hosts.

// One run of a stage on some hosts.
struct HostsRun {
  bool finished = true;
  std::vector<int64_t> stopped = {};  // hosts that ended it; []: nobody knows
};

struct HostsTried {
  std::vector<int64_t> finished = {};  // hosts of runs that finished
  std::vector<int64_t> left_out = {};  // hosts without which they did
};

// Runs the stage on all of the hosts; then, as long as a run does not finish, without the hosts
// that ended it. If nobody knows which did, or all did, the halves run apart, and then those
// that remain together. A host that does not finish alone is left out.
HostsTried run_on_hosts(std::vector<int64_t> hosts,
                        const std::function<HostsRun(const std::vector<int64_t>&)>& run);

}  // namespace shardproof::sim::validate
