// Whether two ranks that met in one collective call made the same call.
#pragma once

#include <optional>
#include <string>

#include "comm/call.h"

namespace shardproof::sim {

// What differs between two calls that should be one, e.g. "op all_reduce against all_gather";
// nothing when they agree. Compared: op, reduce op, dtype, root, dim, shape, splits, label.
//
//   all_reduce, broadcast      equal shapes
//   all_gather                 equal sizes lists; equal shapes but for `dim` when sizes are given
//   reduce_scatter             equal shapes, equal sizes lists
//   all_to_all                 equal trailing shapes; what i sends to j is what j expects from i
//   gather, scatter            equal trailing shapes; the root's part i fits rank i
//   send, recv                 equal shapes and dtypes; labels may differ
std::optional<std::string> difference(const Call& a, const Call& b);

// True when a call must be compared with each other member, not with one of them only.
bool is_pairwise(const Call& line);

// "ranks 0 and 2 disagree on call 3 of tp[0,2]: <difference>. Rank 0: <call>. Rank 2: <call>"
std::string describe_disagreement(const Call& a, const Call& b, const std::string& what);

}  // namespace shardproof::sim
