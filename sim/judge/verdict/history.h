// What went before a divergence on the rank that has its worst element.
#pragma once

#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::judge {

// Whether the label of a described call has the name of the tensor in it, as whole words.
bool names_tensor(const std::string& call, const std::string& tensor);

// Adds the last right observation of the worst rank, its collectives since then, and those before
// it in the step that have the tensor's name, or those of a bucket in which it lies.
void add_history(const std::vector<RankReport>& reports, Divergence& found);

}  // namespace shardproof::sim::judge
