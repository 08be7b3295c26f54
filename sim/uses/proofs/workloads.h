// The workloads of a program besides `train` and `logprobs`.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/case/scenario/known_workload.h"
#include "sim/uses/proofs/workload.h"

namespace shardproof::sim::proofs {

class Workloads {
 public:
  Workloads() = default;
  Workloads(std::initializer_list<Workload> workloads);

  // Throws Error(kBadInput) for a name that is taken or malformed, or a function that is missing.
  void add(Workload workload);
  const Workload* find(const std::string& name) const;  // null: unknown
  std::vector<KnownWorkload> known() const;             // for the reader of scenarios
  bool empty() const { return by_name_.empty(); }

 private:
  std::map<std::string, Workload> by_name_;
};

Workloads built_in_workloads();

}  // namespace shardproof::sim::proofs
