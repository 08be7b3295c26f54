// Poisons outputs, and finds accesses to buffers in flight.
#include "sim/world/emulated/in_flight.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <limits>

namespace shardproof::sim::world {
namespace {

using Change = WatchedMemory::Change;

constexpr const char* kWaitFirst =
    "wait() for the call before its buffers are used for anything else, or give it a copy";

std::string name_of(const shardproof::Call& line) {
  return describe(line) + " (call " + std::to_string(line.sequence) + ")";
}

Finding in_flight(int64_t rank, const std::string& what) {
  return {.code = "in_flight",
          .message = "rank " + std::to_string(rank) + " " + what,
          .ranks = {rank},
          .fix = kWaitFirst};
}

template <class Type>
void fill(const at::Tensor& tensor) {
  tensor.fill_(std::numeric_limits<Type>::min());
}

// Whether the dtype has a poison.
bool fill_with_poison(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  switch (tensor.scalar_type()) {
    case at::kLong:
      fill<int64_t>(tensor);
      break;
    case at::kInt:
      fill<int32_t>(tensor);
      break;
    case at::kShort:
      fill<int16_t>(tensor);
      break;
    case at::kChar:
      fill<int8_t>(tensor);
      break;
    default:
      if (!tensor.is_floating_point() && !tensor.is_complex()) return false;
      tensor.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  return true;
}

WatchedMemory poisoned(const at::Tensor& tensor) {
  if (!fill_with_poison(tensor)) return WatchedMemory(tensor);
  return WatchedMemory::of_one_value(tensor);
}

const WatchedMemory* overlapped(const std::vector<WatchedMemory>& watched,
                                const std::vector<at::Tensor>& tensors) {
  for (const WatchedMemory& memory : watched) {
    for (const at::Tensor& tensor : tensors) {
      if (memory.overlaps(tensor)) return &memory;
    }
  }
  return nullptr;
}

std::optional<std::string> change_of(const std::vector<WatchedMemory>& watched, bool copied) {
  for (const WatchedMemory& memory : watched) {
    const Change change = memory.change();
    if (change == Change::kWritten) return "wrote to";
    if (change == Change::kFreed && !copied) return "freed";
  }
  return std::nullopt;
}

}  // namespace

void poison(const at::Tensor& tensor) { fill_with_poison(tensor); }

std::optional<Finding> InFlight::clash(const shardproof::Call& line, const Buffers& buffers) const {
  for (const Call& call : calls_) {
    std::string how;
    if (overlapped(call.outputs, buffers.outputs) != nullptr) {
      how = "an output of the one is an output of the other";
    } else if (overlapped(call.outputs, buffers.inputs) != nullptr) {
      how = "its input is the output of the call in flight";
    } else if (overlapped(call.inputs, buffers.outputs) != nullptr) {
      how = "its output is the input of the call in flight";
    }
    if (how.empty()) continue;
    return in_flight(line.rank, "calls " + name_of(line) + " on a buffer of " + name_of(call.line) +
                                    ", which it has not waited for: " + how);
  }
  return std::nullopt;
}

InFlight::Handle InFlight::start(const shardproof::Call& line, const Buffers& buffers) {
  const at::NoGradGuard no_grad;
  Call call{.line = line, .copied = buffers.copied, .inputs = {}, .outputs = {}};
  for (const at::Tensor& output : buffers.outputs) {
    if (!output.defined()) continue;
    call.outputs.push_back(poisoned(output));
  }
  for (const at::Tensor& input : buffers.inputs) {
    if (input.defined() && overlapped(call.outputs, {input}) == nullptr) {
      call.inputs.emplace_back(input);
    }
  }
  return calls_.insert(calls_.end(), std::move(call));
}

std::optional<Finding> InFlight::finish(Handle handle) {
  const Call call = std::move(*handle);
  calls_.erase(handle);
  const at::NoGradGuard no_grad;
  std::optional<std::string> deed = change_of(call.inputs, call.copied);
  std::string whose = "the input of ";
  if (!deed) {
    deed = change_of(call.outputs, false);
    whose = "the output of ";
  }
  if (!deed) return std::nullopt;
  return in_flight(call.line.rank,
                   *deed + " " + whose + name_of(call.line) + " before it waited for the call");
}

}  // namespace shardproof::sim::world
