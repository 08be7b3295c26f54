#include "sim/rank/fault_injection.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>

#include "base/error.h"
#include "sim/rank/skipping_backend.h"

namespace shardproof::sim {

FaultInjection::FaultInjection(const std::vector<FaultSpec>& faults, int64_t rank,
                               std::function<void()> before_kill)
    : before_kill_(std::move(before_kill)) {
  for (const FaultSpec& fault : faults) {
    if (fault.rank == rank) planned_.push_back({fault, 0});
  }
}

bool FaultInjection::before_call(const CollectiveCall& call) {
  for (Planned& planned : planned_) {
    const FaultSpec& fault = planned.fault;
    if (call.label.find(fault.label) == std::string::npos) continue;
    if (planned.matches++ != fault.at_call) continue;
    if (fault.kind == "kill") {
      if (before_kill_) before_kill_();
      ::raise(SIGKILL);
    } else if (fault.kind == "hang") {
      for (;;) ::pause();
    } else if (fault.kind == "throw") {
      throw std::runtime_error(fmt::format("planted fault: rank {} throws before {}", fault.rank,
                                           describe_call(call)));
    } else if (fault.kind == "skip") {
      *skip_next_ = true;
      return false;
    }
  }
  return true;
}

BackendFactory FaultInjection::wrap(BackendFactory factory) {
  bool skips = false;
  for (const Planned& planned : planned_) skips = skips || planned.fault.kind == "skip";
  if (!skips) return factory;
  return [factory = std::move(factory), skip_next = skip_next_](const std::string& name,
                                                                const std::vector<int64_t>& ranks) {
    return make_skipping_backend(factory(name, ranks), skip_next);
  };
}

}  // namespace shardproof::sim
