#include "sim/uses/validate/going_on.h"

#include <algorithm>
#include <cstddef>

namespace shardproof::sim::validate {
namespace {

using HostNumbers = std::vector<int64_t>;
using RunHosts = std::function<HostsRun(const HostNumbers&)>;

void append(HostNumbers& to, const HostNumbers& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Without the last run of those that remain; `in_halves`: whether they did not run together.
HostsTried tried(HostNumbers hosts, const RunHosts& run, bool& in_halves) {
  HostNumbers left_out;
  while (!hosts.empty()) {
    const HostsRun one = run(hosts);
    if (one.finished) return {hosts, left_out};
    HostNumbers rest;
    for (const int64_t host : hosts) {
      const bool stopped =
          std::find(one.stopped.begin(), one.stopped.end(), host) != one.stopped.end();
      if (!stopped) rest.push_back(host);
    }
    if (rest.size() == hosts.size() || rest.empty()) break;
    for (const int64_t host : hosts) {
      if (std::find(rest.begin(), rest.end(), host) == rest.end()) left_out.push_back(host);
    }
    hosts = rest;
  }
  if (hosts.size() < 2) {
    append(left_out, hosts);
    return {{}, left_out};
  }
  in_halves = true;
  const auto middle = hosts.begin() + static_cast<std::ptrdiff_t>((hosts.size() + 1) / 2);
  HostsTried all{{}, left_out};
  for (const HostNumbers& half :
       {HostNumbers(hosts.begin(), middle), HostNumbers(middle, hosts.end())}) {
    const HostsTried one = tried(half, run, in_halves);
    append(all.finished, one.finished);
    append(all.left_out, one.left_out);
  }
  return all;
}

}  // namespace

HostsTried run_on_hosts(std::vector<int64_t> hosts, const RunHosts& run) {
  bool in_halves = false;
  HostsTried all = tried(std::move(hosts), run, in_halves);
  // If no host was left out, they are known not to finish together.
  if (in_halves && all.finished.size() > 1 && !all.left_out.empty()) run(all.finished);
  return all;
}

}  // namespace shardproof::sim::validate
