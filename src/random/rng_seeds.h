// The initial seeds of each rank's random streams.
//
//   data-parallel-rng      seed + 100 * stage                   equal on all ranks of a stage
//   model-parallel-rng     seed + 100 * stage + 2718 + tp_rank
//   expert-parallel-rng    seed + 100 * (stage * ep_size + ep_rank) + 1024 + etp_rank
//
// Source: Megatron-LM random.py, model_parallel_cuda_manual_seed, and initialize.py for the stage.
// There the seeds of two purposes can be equal: ep_rank 17, etp_rank 0 has the expert seed of
// tp_rank 6 (seed + 2724), and an etp_rank of 100 or more has that of another ep_rank. It failed on
// a rank that is both and did not report two ranks that shared a stream. Here every rank refuses a
// mesh on which any two ranks would. There, too, ep_rank 1 of a stage has the expert seed of
// ep_rank 0 of the next; here ep_size keeps them apart.
#pragma once

#include <cstdint>

#include "random/rng_tracker.h"

namespace shardproof {

// A rank's coordinates, and the sizes of the axes. ep: expert parallel; etp: tensor parallel of
// experts.
struct RngPlace {
  int64_t tp_rank = 0, tp_size = 1;
  int64_t ep_rank = 0, ep_size = 1;
  int64_t etp_rank = 0, etp_size = 1;
  int64_t stage = 0, stages = 1;  // coordinate on pp, and its size
};

struct RngSeeds {
  uint64_t data = 0, model = 0, expert = 0;
};

// Throws Error(kBadInput) for a seed below 0, and for one with which a rank of the mesh would get a
// seed above kMaxGeneratorSeed (base/seed.h). Throws Error(kRefused) for a mesh on which two
// streams, of one purpose or of two, would have equal seeds. The sizes decide, so all ranks throw.
RngSeeds rng_seeds(int64_t seed, const RngPlace& place);

// Removes the tracker's streams and adds the three standard ones.
void seed_streams(RngTracker& tracker, int64_t seed, const RngPlace& place);

}  // namespace shardproof
