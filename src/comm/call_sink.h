// What a communicator passes to its backend outside of c10d's interface.
#pragma once

#include "comm/communicator.h"

namespace shardproof {

struct CallNotes {
  Call call;
  bool private_input = false;   // only the communicator can read or change the backend's input
  bool private_output = false;  // nobody can read the outputs before wait()
  at::Tensor input = {};        // the caller's tensor; undefined: the arguments of the backend call
};

// A backend that uses the notes implements this beside c10d::Backend. The communicator finds it by
// dynamic_cast and calls next_call right before each backend call, on the same thread. A backend
// call without notes is described by its arguments.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void next_call(CallNotes notes) = 0;
};

}  // namespace shardproof
