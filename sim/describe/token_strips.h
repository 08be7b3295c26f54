// Which token of which sequence each rank holds, as strips of text.
//
//   tokens     a letter for each sample, . for padding
//     batch      A  AAAAA
//                B  BB...
//     dp 0, microbatch 0    AAAAA...BB..   as packed
//       cp 0                A..B           A 0, B 0    as its rank holds it
#pragma once

#include <string>

#include "model/batch.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

// Of a whole model's case: the batch, each microbatch's rows, and what each rank of cp and ulysses
// has of them, in its local order. "" where nothing is packed or cut. What is wider than
// `most_columns` or longer than `most_lines` is left out and said. `color`: escape codes too.
// Throws as deal_batches and load_batch; Error(kRefused) where the mesh cannot cut the batch.
std::string token_strips(const CaseSpec& spec, const Batch& batch, bool color,
                         int64_t most_columns = 160, int64_t most_lines = 64);

}  // namespace shardproof::sim
