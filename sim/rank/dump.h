// The run's own full tensors, put together from all ranks and written under the names of
// expected.safetensors (design.md section 8).
#pragma once

#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/batch.h"
#include "observe/probe.h"

namespace shardproof::sim {

// Passes everything on to another probe and keeps what the file needs: the first step's logprobs,
// loss, gradients and norm, every step's loss and norm, the last step's parameters.
class DumpProbe final : public Probe {
 public:
  DumpProbe(Probe& next, int64_t last_step) : next_(next), last_step_(last_step) {}
  bool listens(Phase) const override { return true; }
  void observe(const Observation& observation) override;
  const std::vector<Observation>& kept() const { return kept_; }

 private:
  Probe& next_;
  int64_t last_step_;
  std::vector<Observation> kept_;
};

// Collective over the world: every rank calls it with the same names in the same order. Rank 0
// writes. `full_shape_of(name)` gives a parameter's global shape.
//
// Communication   one all_reduce(sum) per tensor: each element comes from its first owner, all
// other
//                 ranks add 0
void write_dump(const std::string& path, const std::vector<Observation>& kept, const Batch& batch,
                const std::map<std::string, std::vector<int64_t>>& parameter_shapes,
                MeshComm& comm);

}  // namespace shardproof::sim
