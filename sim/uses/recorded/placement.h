// Where the elements of a recorded piece lie in the whole tensor.
#pragma once

#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/index_plan.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

// The plan of a piece whose place is known; an unknown one counts as the whole tensor.
judge::IndexPlan plan_of(const RecordedPiece& piece);

// Gives a place to every piece of which none is known: the whole tensor when its shape is that of
// the reference; else the part whose start parameter equals the rank's, when only one dim differs
// and only one part is equal. Throws Error(kBadInput) when none or several are. Activations and
// logprobs of which nothing is known are left out, with outputs that have another dim 0 than the
// reference's and were taken for rows of the batch, and those of modules of which a stage of a
// pipeline holds a part; RecordedRun::not_compared names them.
void place_unknown_pieces(RecordedRun& run, const Reference& reference);

// 1 / (number of ranks) of a piece that is a term of a mean.
double mean_share(const Mesh& mesh, const RecordedPiece& piece);

}  // namespace shardproof::sim::recorded
