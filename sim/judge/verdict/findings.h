// From the rows of all ranks to the first divergence in the golden's order.
#pragma once

#include <optional>
#include <vector>

#include "sim/judge/diff/addends.h"
#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim {

// What a case's rows say. Values outrank replicas, replicas outrank coverage of the same tensor.
//   values    a row is wrong, or the addends of a partial tensor do not sum to the golden
//   replicas  ranks that must hold equal copies do not
//   missing   a golden tensor that no rank observed, of which some element is held by no rank, or
//             of which an addend is missing
// `addends`: what settle_addends() found.
std::optional<Divergence> first_divergence(const CaseSpec& spec, const StepMeshes& meshes,
                                           const std::vector<RankReport>& reports,
                                           const std::map<GoldenPosition, WrongAddends>& addends);

}  // namespace shardproof::sim
