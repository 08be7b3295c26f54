// Gradients that some ranks did not record, although they hold the parameter.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

// "rank 0 recorded no gradient of c.weight, rank 1 none of b.weight": parts of parameters of which
// some rank recorded a gradient and no rank recorded these elements. When the finding is a multiple
// of its own reference plus that of another one, gradients of the two met in one call. "" for
// other findings, and when all is there. Of a parameter it says that the wrong stages alone
// recorded no gradient.
std::string absent_gradients(const RecordedRun& run, const Reference& reference,
                             const judge::Divergence& found);

}  // namespace shardproof::sim::recorded
