// The exit statuses in words.
#include <fmt/format.h>

#include "sim/report/summary.h"

namespace shardproof::sim {

std::string exit_status_text(int exit_status) {
  switch (exit_status) {
    case 0:
      return "0: every case as expected";
    case 1:
      return "1: a mismatch, or with --no-unresolved a tensor that is not resolvable";
    case 2:
      return "2: bad input, no case selected, or selected cases that were not run";
    case 3:
      return "3: a world failed";
    case 4:
      return "4: refused";
    case 5:
      return "5: a fault in shardproof itself";
    case 130:
      return "130: interrupted";
    default:
      return fmt::format("{}", exit_status);
  }
}

}  // namespace shardproof::sim
