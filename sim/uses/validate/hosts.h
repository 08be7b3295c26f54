// The hosts of a job, in the order of their first ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::sim::validate {

struct Hosts {
  std::vector<std::string> names = {};
  std::vector<int64_t> of_rank = {};  // each rank's host, a number in `names`

  int64_t count() const { return static_cast<int64_t>(names.size()); }
  int64_t of(int64_t rank) const { return of_rank[static_cast<size_t>(rank)]; }
  const std::string& name(int64_t host) const { return names[static_cast<size_t>(host)]; }
  std::vector<int64_t> ranks_of(int64_t host) const;
  std::string text(int64_t rank) const;  // "rank 3 on node7"
  // "host2", and of a name that does not say it "host node7".
  std::string called(int64_t host) const { return call(name(host)); }
  static std::string call(const std::string& name);
  // The same hosts of a world whose ranks are on these processes.
  Hosts of_processes(const std::vector<int64_t>& processes) const;
};

// `machines`: the name and the boot id of each rank's host. Machines with equal names become
// "name (1)" and "name (2)". With `ranks_per_host` > 0 that many ranks in a row are a host:
// "host0".
Hosts hosts_of(const std::vector<std::pair<std::string, std::string>>& machines,
               int64_t ranks_per_host);

}  // namespace shardproof::sim::validate
