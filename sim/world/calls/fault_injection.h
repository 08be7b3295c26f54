// Faults that a scenario plants in a rank at run time, to see that they are found and named.
//
//   kill       the process dies of SIGKILL before the call
//   hang       the rank sleeps for ever instead of making the call
//   throw      the rank throws instead of making the call
//   skip       the rank goes on as if it had made the call: it neither sends nor receives
//   delay      the rank sleeps for some seconds, then makes the call
//   drop       its contribution is lost: zeros are sent
//   duplicate  its contribution to a sum counts twice
//   repeat     the call is made twice, one after the other
//   corrupt    one bit of one element of its input or output flips
//   stale      what it sent at the matching call before is sent again
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/mesh_comm.h"
#include "sim/case/case_spec.h"
#include "sim/case/rank_ending.h"
#include "sim/world/calls/faulty_backend.h"

namespace shardproof::sim {

// Lives on one rank's thread.
class FaultInjection {
 public:
  struct Hooks {
    std::function<void()> before_kill = {};               // last words
    std::function<void(const FaultNote&)> on_fired = {};  // as it acts
    // The call is about to be made for a second time.
    std::function<void(const Call&)> on_repeat = {};
  };

  // Takes those of `faults` that are for this rank.
  FaultInjection(const std::vector<FaultSpec>& faults, int64_t rank, Hooks hooks);

  // A training step begins.
  void on_step(int64_t step) { step_ = step; }
  // The rank is about to make this call. True: it makes it. False: it is skipped.
  bool before_call(const Call& call);
  // Backends at whose calls faults act. Without faults on this rank: `factory` itself.
  BackendFactory wrap(BackendFactory factory);
  // What became of the faults of this rank so far.
  std::vector<FaultNote> notes() const;

 private:
  struct Planned {
    FaultSpec fault;
    FaultNote note;
    Tensors before = {};  // stale: what the matching call before sent
  };
  void act(Planned& planned, const Call& call);
  void act_at_backend(Planned& planned, const Call& call);
  void fired(Planned& planned, const std::string& effect);

  std::vector<Planned> planned_;  // does not change once made: the backend's actions point into it
  Hooks hooks_;
  int64_t calls_ = 0;
  int64_t step_ = 0;
  std::shared_ptr<NextCall> next_ = std::make_shared<NextCall>();
};

}  // namespace shardproof::sim
