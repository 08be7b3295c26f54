// The moments of a policy's life. Golden and ranks number what they observe by them, from 1, in
// place of training steps:
//
//   stages     train (2 global batches)   score   save   load   train       and so on in the
//   moments    1 2                        3       -      4      5 6         next life, from 7
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"

namespace shardproof::sim {

// That a draw takes from each stream.
inline constexpr int64_t kNumbersDrawn = 6;

// How many a stage of a batch of `samples` has; one that fails has none.
int64_t moments_of(const StageSpec& stage, int64_t samples);
int64_t moments_of_life(const CaseSpec& spec);
// Whether some stage draws: the policy keeps random streams then, seeded with the case's seed.
bool draws_numbers(const CaseSpec& spec);

// Where the observations of step `step` were made: of other workloads always spec.parallel.
const ParallelSpec& parallel_at(const CaseSpec& spec, int64_t step);
// The first moment of the life that `step` is in; of other workloads 1.
int64_t life_begin(const CaseSpec& spec, int64_t step);
// Samples that `step` works on, of a batch of `samples`.
int64_t samples_at(const CaseSpec& spec, int64_t step, int64_t samples);
// The training steps that parameters and optimizer state as of `step` come from, in order, `step`
// itself last if it is one. Those that a load gave up are not among them; of other workloads all.
std::vector<int64_t> steps_behind(const CaseSpec& spec, int64_t step);
// "stage 4 (load), life 2 of 2", "" of other workloads.
std::string stage_text(const CaseSpec& spec, int64_t step);

}  // namespace shardproof::sim
