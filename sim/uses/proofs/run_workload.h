// Runs a case of a workload: the plain function on one device, or the sharded one on one rank.
//
//   forward    the outputs in the order in which the plain function returns them
//   step       "grad.<input>" of every floating input, the last one first
//
// The gradient that enters at an output is drawn from the case's seed and the output's name.
#pragma once

#include <string>

#include "sim/case/runners.h"
#include "sim/uses/proofs/workload.h"
#include "sim/world/rank/rank_main.h"

namespace shardproof::sim::proofs {

// Like golden::golden_main. Throws Error(kBadInput) as the plain function does for these options.
golden::GoldenSize run_plain(const Workload& workload, const CaseSpec& spec, int golden_fd,
                             const std::string& dump_path = "");

// Like rank_main: returns an encoded RankReport. Throws Error(kRefused) when the mesh cannot cut a
// layout.
std::string run_sharded(const Workload& workload, const CaseSpec& spec, const world::RankEnv& env);

}  // namespace shardproof::sim::proofs
