#include "sim/world/calls/fault_injection.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

#include "base/error.h"
#include "sim/world/calls/spoil.h"

namespace shardproof::sim::world {

FaultInjection::FaultInjection(const std::vector<FaultSpec>& faults, int64_t rank, Hooks hooks)
    : hooks_(std::move(hooks)) {
  for (size_t i = 0; i < faults.size(); ++i) {
    if (faults[i].rank != rank) continue;
    FaultNote note;
    note.index = static_cast<int64_t>(i);
    planned_.push_back({.fault = faults[i], .note = note});
  }
}

bool FaultInjection::before_call(const Call& call) {
  ++calls_;
  next_ = {};
  for (Planned& planned : planned_) {
    if (planned.fault.kind == FaultKind::kSilence || !concerns(planned.fault, call, step_))
      continue;
    const int64_t number = planned.note.matches++;
    if (number == planned.fault.at_call) {
      planned.note.call = describe(call);
      planned.note.step = step_;
      act(planned, call);
    } else if (planned.fault.kind == FaultKind::kStale && number == planned.fault.at_call - 1) {
      next_.on_input.push_back([&planned](const Tensors& inputs) {
        for (const at::Tensor& input : inputs) planned.before.push_back(input.clone());
      });
    }
  }
  return !next_.skip;
}

bool FaultInjection::hides(const std::string& tensor, int64_t step) {
  bool hidden = false;
  for (Planned& planned : planned_) {
    const FaultSpec& fault = planned.fault;
    if (fault.kind != FaultKind::kSilence || step < fault.step) continue;
    if (!occurs_in(tensor, fault.label)) continue;
    if (planned.note.matches++ < fault.at_call) continue;
    hidden = true;
    if (planned.note.fired) continue;
    planned.note.step = step;
    planned.note.call = tensor;
    fired(planned, "");
  }
  return hidden;
}

void FaultInjection::fired(Planned& planned, const std::string& effect) {
  planned.note.fired = true;
  planned.note.effect = effect;
  if (hooks_.on_fired) hooks_.on_fired(planned.note);
}

void FaultInjection::act(Planned& planned, const Call& call) {
  const FaultSpec& fault = planned.fault;
  if (fault.kind == FaultKind::kKill) {
    fired(planned, "");
    if (hooks_.before_kill) hooks_.before_kill();
    ::raise(SIGKILL);
  } else if (fault.kind == FaultKind::kHang) {
    fired(planned, "");
    for (;;) ::pause();
  } else if (fault.kind == FaultKind::kThrow) {
    fired(planned, "");
    throw std::runtime_error(
        fmt::format("planted fault: rank {} throws before {}", fault.rank, describe(call)));
  } else if (fault.kind == FaultKind::kDelay) {
    fired(planned, fmt::format("by {:g} s", fault.seconds));
    std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
  } else if (fault.kind == FaultKind::kSkip) {
    fired(planned, "");
    next_.skip = true;
  } else if (is_of_link(fault.kind)) {
    act_on_link(planned);
  } else {
    act_at_backend(planned, call);
  }
}

void FaultInjection::act_on_link(Planned& planned) {
  if (!hooks_.change_link) {
    planned.note.problem = "the rank is on no node with a link of its own";
    return;
  }
  try {
    fired(planned, hooks_.change_link(planned.fault));
  } catch (const Error& error) {
    planned.note.problem = error.what();
  }
}

// A fault that cannot act on the buffer is an error of the scenario: it is noted, and the call
// runs.
void FaultInjection::act_at_backend(Planned& planned, const Call& call) {
  const FaultSpec& fault = planned.fault;
  if (fault.kind == FaultKind::kRepeat) {
    next_.again = [this, &planned, call] {
      fired(planned, "");
      if (hooks_.on_repeat) hooks_.on_repeat(call);
    };
    return;
  }
  const auto change = [this, &planned](const Tensors& tensors) {
    try {
      fired(planned, spoil(planned.fault, tensors, {planned.before, token_map_}));
    } catch (const Error& error) {
      planned.note.problem = error.what();
    }
  };
  const bool output = fault.kind == FaultKind::kCorrupt && fault.side == FaultSide::kOutput;
  (output ? next_.on_output : next_.on_input).push_back(change);
}

std::function<void()> FaultInjection::before_backend_call(CallInProgress& call) {
  NextCall next = std::exchange(next_, {});
  call.skip = next.skip;
  if (next.skip) return {};
  call.again = std::move(next.again);
  if (!next.on_input.empty() && !call.in_place) {
    for (at::Tensor& input : call.inputs) input = input.clone();
  }
  for (const auto& change : next.on_input) change(call.inputs);
  if (next.on_output.empty()) return {};
  return [changes = std::move(next.on_output), outputs = call.outputs] {
    for (const auto& change : changes) change(outputs);
  };
}

std::vector<FaultNote> FaultInjection::notes() const {
  std::vector<FaultNote> notes;
  for (const Planned& planned : planned_) {
    notes.push_back(planned.note);
    notes.back().calls = calls_;
  }
  return notes;
}

}  // namespace shardproof::sim::world
