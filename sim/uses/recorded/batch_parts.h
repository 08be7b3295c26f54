// What the rows of an embedding's gradient tell of the parts of the batch: a row has the gradient
// of the positions at which its token stands.
#pragma once

#include <string>
#include <vector>

#include "sim/uses/recorded/gradients.h"

namespace shardproof::sim::recorded {

// A sentence for `likely`, or "". Rows that are zero here alone: a part of the batch does not
// count; unless the same columns of another gradient are zero too: then an activation is zero
// there. Rows that are multiples of the reference's, by a few factors that parts of one rank's rows
// share: parts of the batch (ranks, microbatches) have other weights. Those of k parts of which
// each is a mean over its own n_i of N tokens are N / (k n_i), so that their inverses add up to k;
// where the means are added they are N / n_i.
std::string clue_of_batch_parts(const std::vector<Gradient>& gradients);

}  // namespace shardproof::sim::recorded
