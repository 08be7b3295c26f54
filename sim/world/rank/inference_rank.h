// A rank outside of the mesh that receives a policy's weights and cuts them in another way.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "sim/case/case_spec.h"
#include "sim/judge/diff/result_row.h"
#include "sim/world/rank/rank_main.h"

namespace shardproof::sim::world {

// Rank 0 of the mesh and the inference ranks; null if a case has none. Each member makes it once.
std::unique_ptr<Communicator> refit_group(const CaseSpec& spec, const RankEnv& env,
                                          CallListener* listener);

// Takes part in every refit of a case and compares the weights with the golden. The last dim of
// each matrix is cut over the inference ranks, which need not divide it; vectors are whole on each.
// The report numbers ranks as the world does.
judge::RankReport run_inference_rank(const CaseSpec& spec, const RankEnv& env);

}  // namespace shardproof::sim::world
