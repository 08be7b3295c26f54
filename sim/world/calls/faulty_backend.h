// A backend at whose single calls planted faults act: on what is sent, on what arrives, or on
// whether the call is made at all.
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

// What is to happen at the next backend call of one rank. Lives on its thread; taken by the call.
struct NextCall {
  // Left out: it returns at once and its outputs are zeros.
  bool skip = false;
  // Changes copies of the rank's inputs just before they are sent. Empty: nothing to change.
  std::vector<std::function<void(const Tensors& inputs)>> on_input = {};
  // Changes the outputs when they have arrived, at wait().
  std::vector<std::function<void(const Tensors& outputs)>> on_output = {};
  // Told just before the call is made for a second time. Empty: made once.
  std::function<void()> again = {};
};

c10::intrusive_ptr<c10d::Backend> make_faulty_backend(c10::intrusive_ptr<c10d::Backend> inner,
                                                      std::shared_ptr<NextCall> next);

}  // namespace shardproof::sim
