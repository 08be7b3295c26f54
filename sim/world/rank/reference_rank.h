// What the ranks of a case do otherwise when it is compared with another layout, and no process may
// hold the whole model.
#pragma once

#include "sim/case/case_spec.h"
#include "sim/judge/probe/reference_probe.h"
#include "train/trainer.h"

namespace shardproof::sim::world {

// Whether each rank draws its own shards of seeded weights: in the case, and in the run that makes
// the reference.
bool draws_own_shards(const CaseSpec& spec);

// Gives the trainer the shards of seeded_weights(). Holds one full parameter at a time, and
// otherwise the rank's share.
void draw_own_shards(const CaseSpec& spec, const ModelConfig& config, Trainer& trainer,
                     const Mesh& mesh, int64_t rank);

judge::FullSizes full_sizes(const ModelConfig& config, const Batch& batch);

}  // namespace shardproof::sim::world
