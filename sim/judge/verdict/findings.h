// Finds the first divergence in the golden's order from the rows of all ranks.
#pragma once

#include <optional>
#include <vector>

#include "sim/judge/diff/addends.h"
#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::judge {

// Returns the first divergence. Values outrank replicas, and replicas outrank coverage of the same
// tensor:
//   values    a row is wrong, or the addends of a partial tensor do not sum to the golden
//   replicas  ranks that must hold equal copies do not
//   missing   no rank observed a golden tensor, or no rank holds one of its elements, or an
//             addend of it is missing
// `addends` is the result of settle_addends(), and `microbatches` all with their goldens, or none.
std::optional<Divergence> first_divergence(const CaseSpec& spec, const StepMeshes& meshes,
                                           const std::vector<RankReport>& reports,
                                           const std::map<GoldenPosition, WrongAddends>& addends,
                                           const std::vector<MicrobatchGolden>& microbatches = {});

}  // namespace shardproof::sim::judge
