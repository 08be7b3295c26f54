// An error in the calls of a world.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::sim::world {

struct Finding {
  std::string code;            // disagreement | deadlock | never_waited | in_flight | threw | hung
  std::string message;         // the fact, with ranks, calls and labels
  std::vector<int64_t> ranks;  // named in the message, ascending
  std::string fix = {};

  std::string text() const { return fix.empty() ? message : message + "; " + fix; }
};

}  // namespace shardproof::sim::world
