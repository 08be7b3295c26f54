// The mesh of each step of a case, which a policy's stages may change.
#pragma once

#include <map>

#include "mesh/mesh.h"
#include "sim/case/policy_stages.h"

namespace shardproof::sim {

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
