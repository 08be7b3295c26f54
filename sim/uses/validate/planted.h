// The faults that a suite plants, on one rank: what acts at its backend calls, its clock and its
// arithmetic.
#pragma once

#include <random>
#include <set>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/uses/validate/suite.h"
#include "sim/world/calls/interceptor.h"

namespace shardproof::sim::validate {

// Whether the fault acts on this rank in this stage; `host_of` has each rank's host.
bool acts_on(const PlantedFault& fault, Stage stage, int64_t rank,
             const std::vector<int64_t>& host_of);

// Those that the world itself plants: kill, hang and cut, as faults of a case.
std::vector<FaultSpec> world_faults(const std::vector<PlantedFault>& faults, Stage stage,
                                    const std::vector<int64_t>& host_of);

// Belongs to one rank's thread. Must outlive the backends that it intercepts.
class PlantedFaults {
 public:
  PlantedFaults(const std::vector<PlantedFault>& faults, Stage stage, int64_t round, int64_t seed,
                int64_t rank, std::vector<int64_t> host_of);

  bool is_empty() const { return corrupt_.empty() && slow_.empty(); }  // none acts at calls
  std::function<void()> before_call(world::CallInProgress& call);      // an Interceptor
  void before_computing();                                             // a slow host sleeps
  double clock_offset_s() const { return clock_offset_s_; }
  // The numbers, in the suite's list, of those that have acted on this rank.
  const std::set<size_t>& acted() const { return acted_; }

 private:
  struct Active {
    size_t number;
    PlantedFault fault;
  };
  bool concerns(const PlantedFault& fault, const world::CallInProgress& call) const;
  bool is_drawn(const PlantedFault& fault);

  int64_t rank_;
  std::vector<int64_t> host_of_;
  std::vector<Active> corrupt_, slow_;
  std::set<size_t> acted_;
  double clock_offset_s_ = 0;
  std::mt19937_64 random_;
};

// Flips one bit of those elements of each tensor that the pattern takes.
void corrupt(const world::Tensors& tensors, const PlantedFault& fault);

}  // namespace shardproof::sim::validate
