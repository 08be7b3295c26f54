#include "sim/world/calls/call_digests.h"

#include <ATen/ATen.h>

#include "base/digest.h"
#include "sim/world/clock/rank_clock.h"

namespace shardproof::sim::world {
namespace {

uint64_t bytes_digest(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor here = (tensor.is_cpu() ? tensor : tensor.cpu()).contiguous();
  return digest_of(here.data_ptr(), here.nbytes());
}

std::vector<uint64_t> digests_of(const CallSide& side) {
  std::vector<uint64_t> digests;
  for (const at::Tensor& tensor : side.tensors) digests.push_back(bytes_digest(tensor));
  if (!side.together || digests.size() < 2) return digests;
  return {digest_of(digests.data(), digests.size() * sizeof(uint64_t))};
}

}  // namespace

std::function<void()> CallDigests::before_call(const CallInProgress& call) {
  if (!call.call || (call.sent.tensors.empty() && call.received.tensors.empty())) return {};
  const ClockPause pause(clock_);
  const size_t number = calls_.size();
  calls_.push_back({.call = *call.call,
                    .step = step_,
                    .calls_before = calls_made_ - 1,
                    .sent = digests_of(call.sent)});
  done_.push_back(false);
  return [this, number, received = call.received] {
    const ClockPause paused(clock_);
    calls_[number].received = digests_of(received);
    done_[number] = true;
  };
}

std::vector<CallDigest> CallDigests::take() {
  std::vector<CallDigest> whole;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (done_[i]) whole.push_back(std::move(calls_[i]));
  }
  calls_.clear();
  done_.clear();
  return whole;
}

}  // namespace shardproof::sim::world
