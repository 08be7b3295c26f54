// The state of a PendingCollective: the backend's work, and how its result is made.
#pragma once

#include <functional>

#include "comm/communicator.h"

namespace shardproof {

struct PendingCollective::State {
  Call call;
  CallListener* listener = nullptr;     // null: no listener, or no call was made
  c10::intrusive_ptr<c10d::Work> work;  // null: nothing to wait for
  std::function<at::Tensor()> finish;   // makes the result after the work; null: undefined
};

// Runs a backend call; any exception other than an Error becomes Error(kFailed) that names the
// call. Autograd does not see its views: 64 parts of a result hold 50 KB less.
void run_backend_call(const Call& call, const std::function<void()>& run);

}  // namespace shardproof
