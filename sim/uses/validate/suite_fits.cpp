#include "sim/uses/validate/suite_fits.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof::sim::validate {

void check_fits(const Suite& suite, int64_t ranks, std::optional<int64_t> hosts) {
  int64_t size = 1;
  for (const auto& [axis, one] : suite.mesh) size *= one;
  if (!suite.mesh.empty() && size != ranks) {
    throw_bad_input(
        fmt::format("the mesh of {} is for {} ranks, there are {}", suite.file, size, ranks),
        "correct mesh, or leave it out");
  }
  for (const PlantedFault& fault : suite.faults) {
    int64_t most = fault.host;
    for (const int64_t host : fault.link) most = std::max(most, host);
    const bool unknown = hosts && most >= *hosts;
    if (!unknown && fault.rank < ranks) continue;
    throw_bad_input(fmt::format("a fault of {} is on {} {}, and there are {}", suite.file,
                                unknown ? "host" : "rank", unknown ? most : fault.rank,
                                unknown ? *hosts : ranks),
                    "count from 0, and name one that is there");
  }
}

}  // namespace shardproof::sim::validate
