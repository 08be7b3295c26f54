// Whether single microbatches explain a wrong gradient: which goldens that takes, and what they
// give.
#pragma once

#include <vector>

#include "sim/judge/explain/diagnose.h"
#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::judge {

// The microbatches, still without goldens, that may explain a wrong gradient of step 1 for which
// no cause was found; none where they cannot, or are too many.
std::vector<MicrobatchGolden> microbatches_to_try(const CaseResult& result);
// The case in which all other samples have no weight.
CaseSpec case_of_samples(const CaseSpec& spec, const std::vector<int64_t>& samples);
// The gradients of the tensor of these rows in the goldens of single microbatches; empty where one
// of them has none of its shape.
std::vector<MicrobatchGradient> microbatch_gradients(
    const std::vector<MicrobatchGolden>& microbatches, const std::vector<const ResultRow*>& rows);

}  // namespace shardproof::sim::judge
