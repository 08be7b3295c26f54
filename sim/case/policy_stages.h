// The moments of a policy: the steps of its stages. Golden and ranks number observations by
// moments, from 1, in place of training steps. A policy runs its stages once or several times; each
// run is a life:
//
//   stages     train (2 global batches)   score   save   load   train       the next life goes on
//   moments    1 2                        3       -      4      5 6         at moment 7
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

// How many numbers a draw takes from each stream.
inline constexpr int64_t kNumbersDrawn = 6;

// The number of moments of a stage over a batch of `samples`; 0 when it fails.
int64_t moments_of(const StageSpec& stage, int64_t samples);
int64_t moments_of_life(const CaseSpec& spec);
// Whether a stage draws numbers; then the policy keeps random streams from the case's seed.
bool draws_numbers(const CaseSpec& spec);

// The mesh of the observations of step `step`; always spec.parallel for other workloads.
const ParallelSpec& parallel_at(const CaseSpec& spec, int64_t step);
// The first moment of the life that `step` is in; 1 for other workloads.
int64_t life_begin(const CaseSpec& spec, int64_t step);
// The number of samples that `step` processes, of a batch of `samples`.
int64_t samples_at(const CaseSpec& spec, int64_t step, int64_t samples);
// The training steps, in order, that led to the parameters and optimizer state after `step`; `step`
// itself is last if it is one. They exclude steps that a load discarded. For other workloads they
// are 1 to `step`.
std::vector<int64_t> steps_behind(const CaseSpec& spec, int64_t step);
// For example "stage 4 (load), life 2 of 2"; "" for other workloads.
std::string stage_text(const CaseSpec& spec, int64_t step);

// The mesh of each step of a case, which a policy's stages may change.
class StepMeshes {
 public:
  explicit StepMeshes(Mesh mesh) : mesh_(std::move(mesh)) {}  // one for all steps
  explicit StepMeshes(const CaseSpec& spec) : mesh_(spec.parallel.mesh()) {
    for (int64_t step = 1; step <= spec.lives * moments_of_life(spec); ++step) {
      of_step_.emplace(step, parallel_at(spec, step).mesh());
    }
  }
  // The case's own mesh for a step outside of all stages.
  const Mesh& at(int64_t step) const {
    const auto found = of_step_.find(step);
    return found == of_step_.end() ? mesh_ : found->second;
  }

 private:
  Mesh mesh_;
  std::map<int64_t, Mesh> of_step_;
};

}  // namespace shardproof::sim
