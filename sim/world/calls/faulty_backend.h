// A backend at whose calls planted faults act: they change inputs or outputs, or skip or repeat a
// call.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "comm/call_sink.h"

namespace c10d {
class Backend;
}

namespace shardproof::sim {

using Tensors = std::vector<at::Tensor>;

// The faults at one rank's next backend call, which takes them. Belongs to the rank's thread.
struct NextCall {
  // The call returns at once, and its outputs are zeros.
  bool skip = false;
  // Change copies of the rank's inputs before they are sent. Empty: inputs do not change.
  std::vector<std::function<void(const Tensors& inputs)>> on_input = {};
  // Change the outputs at wait(), when they have arrived.
  std::vector<std::function<void(const Tensors& outputs)>> on_output = {};
  // Called before the call is made for the second time. Empty: the call is made once.
  std::function<void()> again = {};
};

c10::intrusive_ptr<c10d::Backend> make_faulty_backend(c10::intrusive_ptr<c10d::Backend> inner,
                                                      std::shared_ptr<NextCall> next);

}  // namespace shardproof::sim
