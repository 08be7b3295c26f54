// The exit statuses in words.
#include <fmt/format.h>

#include <map>

#include "sim/report/summary.h"

namespace shardproof::sim::report {

std::string exit_status_text(int exit_status) {
  static const std::map<int, std::string> meanings = {
      {0, "every case as expected"},
      {1, "a case not as expected, or with --no-unresolved a tensor that could not be judged"},
      {2, "bad input, no case selected, or selected cases that were not run"},
      {3, "a world failed"},
      {4, "refused"},
      {5, "a fault in shardproof itself"},
      {130, "interrupted"}};
  const auto meaning = meanings.find(exit_status);
  return meaning == meanings.end() ? std::to_string(exit_status)
                                   : fmt::format("{}: {}", exit_status, meaning->second);
}

}  // namespace shardproof::sim::report
