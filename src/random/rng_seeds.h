// Which seed each of a rank's random streams begins with.
//
//   data-parallel-rng      seed                                 equal on all ranks
//   model-parallel-rng     seed + 2718 + tp_rank                another on each tp rank
//   expert-parallel-rng    seed + 1024 + 100 * ep_rank + etp_rank
//
// Source: Megatron-LM random.py, model_parallel_cuda_manual_seed. There the seeds of two purposes
// can be equal: ep_rank 17, etp_rank 0 has the expert seed of tp_rank 6 (seed + 2724), and an
// etp_rank from 100 on that of another ep_rank. It failed on a rank that is both and said nothing
// where two ranks shared a stream. Here a mesh on which any two of its ranks would is refused, on
// every rank alike.
#pragma once

#include <cstdint>

#include "random/rng_tracker.h"

namespace shardproof {

// A rank's places, and the sizes of the axes. ep: expert parallel; etp: tensor parallel of experts.
struct RngPlace {
  int64_t tp_rank = 0, tp_size = 1;
  int64_t ep_rank = 0, ep_size = 1;
  int64_t etp_rank = 0, etp_size = 1;
};

struct RngSeeds {
  uint64_t data = 0, model = 0, expert = 0;
};

// Throws Error(kBadInput): a seed below 0. Throws Error(kRefused): a mesh on which two streams of
// different purpose would begin with one seed; depends on the sizes only.
RngSeeds rng_seeds(int64_t seed, const RngPlace& place);

// Drops what the tracker has and adds the three standard streams.
void seed_streams(RngTracker& tracker, int64_t seed, const RngPlace& place);

}  // namespace shardproof
