// The side channel by which a communicator tells its backend what c10d's interface has no place
// for.
#pragma once

#include "comm/communicator.h"

namespace shardproof {

struct CallNotes {
  Call call;          // with the shapes as the caller gave them, and the label
  bool private_input = false;   // nobody but the communicator can see or change the input
  bool private_output = false;  // nobody can see the outputs before wait()
  at::Tensor input = {};        // what the caller gave; undefined: the backend's own arguments
};

// A backend that wants the notes implements this beside c10d::Backend; the communicator finds it by
// dynamic_cast and calls it right before each backend call, on the same thread. A backend that is
// called without notes makes its own from the arguments.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void next_call(CallNotes notes) = 0;
};

}  // namespace shardproof
