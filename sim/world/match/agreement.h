// Compares the calls of two ranks that met in one collective.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/call.h"

namespace shardproof::sim::world {

// The difference between two calls of one collective, such as "op all_reduce against all_gather";
// nothing if they agree. Compares op, reduce op, dtype, root, dim, shape, splits and label.
//
//   all_reduce, broadcast      equal shapes
//   all_gather                 equal lists of sizes; equal shapes, but for `dim` if sizes are given
//   reduce_scatter             equal shapes, equal sizes lists
//   all_to_all                 equal trailing shapes; i sends to j the size that j expects
//   gather, scatter            equal trailing shapes; the root's part i fits rank i
//   send, recv                 equal shapes and dtypes; labels may differ
std::optional<std::string> difference(const Call& a, const Call& b);

// True if a call must be compared with every other member, not only with one.
bool is_pairwise(const Call& line);

// "ranks 0 and 2 disagree on call 3 of tp[0,2]: <difference>. Rank 0: <call>. Rank 2: <call>"
std::string describe_disagreement(const Call& a, const Call& b, const std::string& what);

// An error in the calls of a world.
struct Finding {
  std::string code;            // disagreement | deadlock | never_waited | in_flight | threw | hung
  std::string message;         // the fact, with ranks, calls and labels
  std::vector<int64_t> ranks;  // named in the message, ascending
  std::string fix = {};

  std::string text() const { return fix.empty() ? message : message + "; " + fix; }
};

}  // namespace shardproof::sim::world
