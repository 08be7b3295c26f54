// A rank outside of the mesh, which receives a policy's weights and holds them cut in another way.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "sim/case/case_spec.h"
#include "sim/judge/diff/result_row.h"
#include "sim/world/rank/rank_main.h"

namespace shardproof::sim {

// Rank 0 of the mesh, then the inference ranks; null where a case has none. Each of them makes it
// once.
std::unique_ptr<Communicator> refit_group(const CaseSpec& spec, const RankEnv& env,
                                          CallListener* listener);

// Its part in every refit of a policy's lives, judged: the last dim of each matrix is cut over the
// inference ranks, which need not divide it; vectors are whole on each. The report is in ranks of
// the world.
RankReport run_inference_rank(const CaseSpec& spec, const RankEnv& env);

}  // namespace shardproof::sim
