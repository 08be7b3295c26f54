// The workloads that a program knows beside `train` and `logprobs`.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/case/scenario/known_workload.h"
#include "sim/proofs/workload.h"

namespace shardproof::sim {

class Workloads {
 public:
  Workloads() = default;
  Workloads(std::initializer_list<Workload> workloads);

  // Throws Error(kBadInput): a name that is taken or is none, a function that is missing.
  void add(Workload workload);
  const Workload* find(const std::string& name) const;  // null: unknown
  std::vector<KnownWorkload> known() const;             // for whoever reads scenarios
  bool empty() const { return by_name_.empty(); }

 private:
  std::map<std::string, Workload> by_name_;
};

// Those of the sharded stack's own layers.
Workloads built_in_workloads();

}  // namespace shardproof::sim
