// The cause of a difference that other tensors of its step, or its own copies, tell.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

// Fills found.likely from what the tensor's own values do not show: a scalar of the forward pass
// that is not equal on the ranks of an axis; a gradient on the way of which the ranks hold addends,
// whose sum is the reference; rows of a gradient that are zero, or have other factors, because
// parts of the batch do not count or count otherwise (batch_parts.h); a router whose gradient is
// wrong where its layer is right otherwise; experts whose gradients alone are far from the
// reference's (experts.h); and a module whose output is wrong and whose weights are right. These
// count where no cause is known. Others replace
// what is known: gradients that ranks did not record (absent.h), states of an optimizer (states.h),
// norms of each rank's own (norms.h), and a factor that is another one in a later step. Nothing
// changes when no clue holds.
void add_clue(const RecordedRun& run, const Reference& reference, judge::Divergence& found);

}  // namespace shardproof::sim::recorded
