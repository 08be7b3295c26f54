// Sums that are missing, and what ranks really hold: copies, addends, or parts of a whole.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/judge/explain/diagnose.h"

namespace shardproof::sim {

// The sum or the mean of what peers hold is the golden where their own values are not. Peers are
// the ranks along one or more axes, or those that hold the same part of the tensor. Says how the
// tensor was declared and what the record says that it is.
std::optional<Explanation> explain_missing_sum(const Symptoms& symptoms,
                                               const std::string& on_which_ranks);

// `pieces` were declared addends over `axes` and their sum is wrong: each is the whole value
// already, or one rank's addend is the one too many or counts twice.
std::optional<Explanation> explain_addends(const Mesh& mesh, const std::string& axes,
                                           const std::vector<const Piece*>& pieces);

}  // namespace shardproof::sim
