#include "sim/world/rank/run_rank.h"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/call_keys.h"
#include "observe/probe.h"
#include "sim/judge/probe/census.h"
#include "sim/world/calls/call_digests.h"
#include "sim/world/calls/fault_injection.h"
#include "sim/world/process/worker_main.h"

namespace shardproof::sim::world {

void prepare_rank_thread() {
  at::set_num_threads(1);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

namespace {

// Planted faults change the number of calls: `skip` leaves one out, `repeat` makes one twice. This
// corrects the communicators' numbers of that call and of later ones.
class CallNumbers {
 public:
  void skipped(const Call& call) { changes_[channel_of(call)].push_back({call.sequence, -1}); }
  void repeated(const Call& call) { changes_[channel_of(call)].push_back({call.sequence, 1}); }
  bool is_skipped(const Call& call) const {
    const auto found = changes_.find(channel_of(call));
    return found != changes_.end() &&
           std::ranges::count(found->second, Change{call.sequence, -1}) > 0;
  }
  CallLine line(const Call& call, bool waiting = false) const {
    CallLine line{call, waiting};
    const auto found = changes_.find(channel_of(call));
    if (found == changes_.end()) return line;
    for (const auto& [from, by] : found->second) line.sequence += call.sequence >= from ? by : 0;
    return line;
  }

 private:
  using Change = std::pair<int64_t, int64_t>;  // from this number on, by so many

  std::map<CallChannel, std::vector<Change>> changes_;
};

}  // namespace

RankEnding run_rank(const RankMain& main, const CaseSpec& spec, RankEnv env,
                    const RankHooks& hooks) {
  const int64_t rank = env.rank;
  RankEnding ending;
  ending.rank = rank;
  CallNumbers numbers;
  const auto tell = [&](const CallLine& line) {
    if (hooks.on_call) hooks.on_call(rank, line);
  };
  FaultInjection injection(spec.faults, rank,
                           {.before_kill =
                                [&] {
                                  if (hooks.before_kill) hooks.before_kill(rank);
                                },
                            .on_fired =
                                [&](const FaultNote& note) {
                                  if (hooks.on_fault) hooks.on_fault(rank, note);
                                },
                            .change_link = hooks.change_link,
                            .on_repeat =
                                [&](const Call& call) {
                                  numbers.repeated(call);
                                  tell(numbers.line(call));
                                }});
  CallDigests digests(env.clock);
  std::vector<Interceptor> interceptors;
  if (spec.world.digests) {
    interceptors.push_back([&](CallInProgress& call) { return digests.before_call(call); });
  }
  if (!injection.is_empty()) {
    interceptors.push_back(
        [&](CallInProgress& call) { return injection.before_backend_call(call); });
    env.on_tokens = [&](const at::Tensor& token_map) { injection.on_tokens(token_map); };
    env.on_tensor = [&, inner = std::move(env.on_tensor)](const Observation& observation) {
      if (observation.token_map.defined()) injection.on_tokens(observation.token_map);
      // What no golden names proves the optimizer. Nothing would miss it, nor what is left out.
      const bool is_named = has_initial(spec) && !spec.reference.is_set();
      const bool is_proof = observation.kind == ObservationKind::kFed ||
                            (observation.kind == ObservationKind::kInitial && !is_named);
      const bool is_missed = !is_proof && observation.phase != Phase::kRecompute &&
                             !judge::is_left_out(spec, observation);
      if (is_missed && injection.hides(observation.name, observation.step)) return false;
      return !inner || inner(observation);
    };
  }
  if (!interceptors.empty()) {
    env.make_backend = intercepted(std::move(env.make_backend), std::move(interceptors));
  }
  env.on_step = [&](int64_t step) {
    injection.on_step(step);
    digests.on_step(step);
    if (hooks.on_step) hooks.on_step(rank, step);
  };
  env.on_call = [&](const Call& call) {
    digests.on_call();
    if (!injection.before_call(call)) return numbers.skipped(call);
    const CallLine line = numbers.line(call);
    ending.last_call = describe(line);
    tell(line);
  };
  env.on_wait = [&](const Call& call) {
    if (!numbers.is_skipped(call)) tell(numbers.line(call, true));
  };
  try {
    if (hooks.on_start) hooks.on_start(rank);
    ending.bytes = main(spec, env);
  } catch (...) {
    const ExceptionFacts why = facts_of_exception(ResultKind::kThrew);
    ending.kind = why.kind;
    ending.message = why.message;
    ending.shortage = why.shortage;
  }
  ending.faults = injection.notes();
  ending.digests = digests.take();
  return ending;
}

}  // namespace shardproof::sim::world
