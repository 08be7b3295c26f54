// What is behind a PendingCollective: the backend's work, and how to make the result from it.
#pragma once

#include <functional>

#include "comm/communicator.h"

namespace shardproof {

struct PendingCollective::State {
  Call call;
  CallListener* listener = nullptr;            // null: nobody listens, or nothing was called
  c10::intrusive_ptr<c10d::Work> work;         // null: nothing to wait for
  std::function<at::Tensor()> finish;          // after the work: the result; null: undefined
  int exceptions = 0;                          // in flight when it was made
};

// Runs a backend call; what it throws becomes Error(kFailed) that names the call. Errors pass.
void run_backend_call(const Call& call, const std::function<void()>& run);

}  // namespace shardproof
