// What acts at every backend call of a rank: planted faults, and hashes of what it sends.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "comm/mesh_comm.h"

namespace shardproof::sim::world {

using Tensors = std::vector<at::Tensor>;

// What one member sends or receives: a part for each member, or one message of several tensors.
struct CallSide {
  Tensors tensors = {};
  bool together = false;
};

struct CallInProgress {
  Tensors inputs = {}, outputs = {};
  bool in_place = false;              // they are the same memory, which the communicator owns
  CallSide sent = {}, received = {};  // both are empty where no two members hold the same values
  std::optional<Call> call = {};      // none: it was made past the communicators
  bool skip = false;                  // it returns at once; outputs that are not inputs are zeros
  std::function<void()> again = {};   // called before the call is made for the second time
};

// Called before a call, on the rank's thread. May change inputs in place, replace others, and set
// `skip` and `again`. Returns what is called when the outputs have arrived; may return nothing.
using Interceptor = std::function<std::function<void()>(CallInProgress& call)>;

// Backends at whose calls the interceptors act: before a call in this order, after it in reverse.
// What they refer to must outlive the backends.
BackendFactory intercepted(BackendFactory factory, std::vector<Interceptor> interceptors);

}  // namespace shardproof::sim::world
