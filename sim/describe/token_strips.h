// Draws which token of which sequence each rank holds, as strips of text.
//
//   tokens     a letter for each sample, . for padding
//     batch      A  AAAAA
//                B  BB...
//     dp 0, microbatch 0    AAAAA...BB..   as packed
#pragma once

#include <string>

#include "model/batch.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim::describe {

// Draws a whole model's case: the batch, each microbatch's rows, and the part of each cp and
// ulysses rank in its local order. Returns "" when nothing is packed or cut. Parts wider than
// `most_columns` or longer than `most_lines` are left out, and the text says so. `color` adds
// escape codes. Throws as deal_batches and load_batch do, and Error(kRefused) if the mesh cannot
// cut it.
std::string token_strips(const CaseSpec& spec, const Batch& batch, bool color,
                         int64_t most_columns = 160, int64_t most_lines = 64);

}  // namespace shardproof::sim::describe
