// One loop over blocks for each dtype. Compiled separately with -O3 (CMakeLists.txt).
#include "sim/world/emulated/reduce_memory.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "base/error.h"

namespace shardproof::sim::world {
namespace {

// Integers wrap as in tensors, without undefined behavior.
template <class Sum>
Sum add(Sum a, Sum b) {
  if constexpr (std::is_integral_v<Sum>) {
    return static_cast<Sum>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class Sum>
Sum multiply(Sum a, Sum b) {
  if constexpr (std::is_integral_v<Sum>) {
    return static_cast<Sum>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

// Reads all inputs of a block before it writes an output. `divisor` 1: the result is not an
// average.
template <class Element, class Sum, class Combine>
void reduce_blocks(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
                   int64_t numel, Sum divisor, Combine combine) {
  constexpr int64_t kBlock = 512;
  std::array<Sum, kBlock> sums;
  for (int64_t start = 0; start < numel; start += kBlock) {
    const int64_t count = std::min(kBlock, numel - start);
    const auto input = [&](size_t j) { return static_cast<const Element*>(inputs[j]) + start; };
    const Element* first = input(0);
    if (inputs.size() == 1) {
      for (int64_t i = 0; i < count; ++i) sums[i] = static_cast<Sum>(first[i]);
    } else {
      const Element* second = input(1);
      for (int64_t i = 0; i < count; ++i) {
        sums[i] = combine(static_cast<Sum>(first[i]), static_cast<Sum>(second[i]));
      }
    }
    for (size_t j = 2; j < inputs.size(); ++j) {
      const Element* next = input(j);
      for (int64_t i = 0; i < count; ++i) sums[i] = combine(sums[i], static_cast<Sum>(next[i]));
    }
    if constexpr (!std::is_integral_v<Sum>) {
      if (divisor != 1) {
        for (int64_t i = 0; i < count; ++i) sums[i] = sums[i] / divisor;
      }
    }
    const auto write = [&](const auto& results) {
      for (void* output : outputs) {
        std::copy_n(results.begin(), count, static_cast<Element*>(output) + start);
      }
    };
    if constexpr (std::is_same_v<Element, Sum>) {
      write(sums);
    } else {
      std::array<Element, kBlock> rounded;
      for (int64_t i = 0; i < count; ++i) rounded[i] = static_cast<Element>(sums[i]);
      write(rounded);
    }
  }
}

template <class Element, class Sum>
void reduce_typed(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
                  int64_t numel, ReduceOp op) {
  const auto run = [&](Sum divisor, auto combine) {
    reduce_blocks<Element, Sum>(inputs, outputs, numel, divisor, combine);
  };
  const auto one = static_cast<Sum>(1);
  const auto sum = [](Sum a, Sum b) { return add(a, b); };
  switch (op) {
    case ReduceOp::kSum:
      return run(one, sum);
    case ReduceOp::kAvg:
      return run(static_cast<Sum>(inputs.size()), sum);
    case ReduceOp::kProduct:
      return run(one, [](Sum a, Sum b) { return multiply(a, b); });
    case ReduceOp::kMax:
      return run(one, [](Sum a, Sum b) { return (a != a || a > b) ? a : b; });
    case ReduceOp::kMin:
      return run(one, [](Sum a, Sum b) { return (a != a || a < b) ? a : b; });
  }
}

}  // namespace

void reduce_memory(c10::ScalarType dtype, const std::vector<const void*>& inputs,
                   const std::vector<void*>& outputs, int64_t numel, ReduceOp op) {
  using Type = c10::ScalarType;
  switch (dtype) {
    case Type::Double:
      return reduce_typed<double, double>(inputs, outputs, numel, op);
    case Type::Float:
      return reduce_typed<float, float>(inputs, outputs, numel, op);
    case Type::Half:
      return reduce_typed<c10::Half, float>(inputs, outputs, numel, op);
    case Type::BFloat16:
      return reduce_typed<c10::BFloat16, float>(inputs, outputs, numel, op);
    case Type::Long:
      return reduce_typed<int64_t, int64_t>(inputs, outputs, numel, op);
    case Type::Int:
      return reduce_typed<int32_t, int32_t>(inputs, outputs, numel, op);
    case Type::Short:
      return reduce_typed<int16_t, int16_t>(inputs, outputs, numel, op);
    case Type::Char:
      return reduce_typed<int8_t, int8_t>(inputs, outputs, numel, op);
    case Type::Byte:
    case Type::Bool:
      return reduce_typed<uint8_t, uint8_t>(inputs, outputs, numel, op);
    default:
      throw_refused(std::string("no reduction of dtype ") + c10::toString(dtype),
                    "reduce a real dtype");
  }
}

}  // namespace shardproof::sim::world
