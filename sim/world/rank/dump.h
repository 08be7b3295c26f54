// Writes the run's full tensors, assembled from all ranks, under the names of
// sim/case/record/expected_names.h.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/batch.h"
#include "observe/probe.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim::world {

// Passes all observations to another probe, and keeps those that the file names.
class DumpProbe final : public Probe {
 public:
  // `spec` must outlive the probe.
  DumpProbe(Probe& next, const CaseSpec& spec) : next_(next), spec_(spec) {}
  bool listens(Phase) const override { return true; }
  void observe(const Observation& observation) override;
  const std::vector<Observation>& kept() const { return kept_; }

 private:
  Probe& next_;
  const CaseSpec& spec_;
  std::vector<Observation> kept_;
};

// Writes spec.dump_file on rank 0. Every rank of the mesh calls it with the same names in the same
// order. `comm` may be on another mesh of these ranks than the observations.
//
// Communication   one all_reduce(sum) per tensor: the first owner of an element adds its value, all
//                 other ranks add 0; then throw_together, for a file that cannot be written
void write_dump(const CaseSpec& spec, const std::vector<Observation>& kept, const Batch& batch,
                const std::map<std::string, std::vector<int64_t>>& parameter_shapes,
                MeshComm& comm);

}  // namespace shardproof::sim::world
