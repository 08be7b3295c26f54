// Faults that a scenario plants in a rank at run time, to see that they are found and named.
//
//   kill   the process dies of SIGKILL before the call
//   hang   the rank sleeps for ever instead of making the call
//   throw  the rank throws instead of making the call
//   skip   the rank goes on as if it had made the call: it neither sends nor receives
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/mesh_comm.h"
#include "sim/scenario/case_spec.h"

namespace shardproof::sim {

// Lives on one rank's thread.
class FaultInjection {
 public:
  // Takes those of `faults` that are for this rank. `before_kill`: last words.
  FaultInjection(const std::vector<FaultSpec>& faults, int64_t rank,
                 std::function<void()> before_kill = {});

  // The rank is about to make this call. True: it makes it. False: it is skipped.
  bool before_call(const CollectiveCall& call);
  // Backends that leave out the calls that are skipped. Without such faults: `factory` itself.
  BackendFactory wrap(BackendFactory factory);

 private:
  struct Planned {
    FaultSpec fault;
    int64_t matches = 0;  // calls so far that the label fits
  };
  std::vector<Planned> planned_;
  std::function<void()> before_kill_;
  std::shared_ptr<bool> skip_next_ = std::make_shared<bool>(false);
};

}  // namespace shardproof::sim
