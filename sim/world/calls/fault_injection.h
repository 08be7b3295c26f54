// Faults that a scenario plants in a rank at run time, as a test of the harness.
#pragma once

#include <functional>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/rank_ending.h"
#include "sim/world/calls/interceptor.h"

namespace shardproof::sim::world {

// Belongs to one rank's thread.
class FaultInjection {
 public:
  struct Hooks {
    std::function<void()> before_kill = {};
    std::function<void(const FaultNote&)> on_fired = {};  // when a fault acts
    // Changes the link of this rank's node, and returns a description of that.
    std::function<std::string(const FaultSpec&)> change_link = {};
    // Before a call is made for the second time.
    std::function<void(const Call&)> on_repeat = {};
  };

  // Keeps those of `faults` that name this rank.
  FaultInjection(const std::vector<FaultSpec>& faults, int64_t rank, Hooks hooks);

  // Called when a training step begins.
  void on_step(int64_t step) { step_ = step; }
  // Called with the token map of each microbatch before its calls, and of each observation that has
  // one. The last one tells padding in the buffers of the calls near it.
  void on_tokens(const at::Tensor& token_map) { token_map_ = token_map; }
  // Called before each call. True: the rank makes it; false: the rank skips it.
  bool before_call(const Call& call);
  // Called with the name of each tensor before the judge gets it. True: the judge does not.
  bool hides(const std::string& tensor, int64_t step);
  // The backend call that follows: an Interceptor. This must outlive what it returns.
  std::function<void()> before_backend_call(CallInProgress& call);
  bool is_empty() const { return planned_.empty(); }  // no fault names this rank
  // The effects of this rank's faults so far.
  std::vector<FaultNote> notes() const;

 private:
  struct Planned {
    FaultSpec fault;
    FaultNote note;
    Tensors before = {};  // stale: the data of the previous matching call
  };
  // The faults at the next backend call.
  struct NextCall {
    bool skip = false;
    std::function<void()> again = {};
    std::vector<std::function<void(const Tensors&)>> on_input = {}, on_output = {};
  };
  void act(Planned& planned, const Call& call);
  void act_on_link(Planned& planned);
  void act_at_backend(Planned& planned, const Call& call);
  void fired(Planned& planned, const std::string& effect);

  std::vector<Planned> planned_;  // never resized, because actions of the backend point into it
  Hooks hooks_;
  int64_t calls_ = 0;
  int64_t step_ = 0;
  at::Tensor token_map_;
  NextCall next_;
};

}  // namespace shardproof::sim::world
