// How a batch falls into microbatches, said again for the groups of tokens that some losses have.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/case/case_spec.h"

namespace shardproof::golden {

struct Dealt {
  std::vector<int64_t> share;       // of each sample: the rank of dp that gets it
  std::vector<int64_t> microbatch;  // of each sample: when that rank works on it, from 0
};

// Neighboring shares of `samples` samples, whose sizes differ by one sample or pair at most, the
// larger ones first; each is cut into microbatches of the case's size.
Dealt deal_samples(const sim::CaseSpec& spec, int64_t samples);

// The ranks among which the positions of a row are cut, by cp (in chunks, zigzag), then ulysses,
// then tp with sequence parallelism: for each of `seq_len` positions the number of the rank.
std::vector<int64_t> ranks_of_positions(const sim::ParallelSpec& parallel, int64_t seq_len);

}  // namespace shardproof::golden
