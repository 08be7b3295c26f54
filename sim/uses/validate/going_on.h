// How a stage goes on around hosts that die or hang in it: without those that are named, and where
// nobody knows which one it was, on halves of the hosts.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace shardproof::sim::validate {

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
