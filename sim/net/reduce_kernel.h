// The inner loop of a reduction on CPU memory, block by block, for one dtype.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"

namespace shardproof::sim {

template <class Sum>
struct Wrapping {  // signed integers wrap like the tensors' own arithmetic, without undefined behaviour
  static Sum add(Sum a, Sum b) {
    if constexpr (std::is_integral_v<Sum> && !std::is_same_v<Sum, bool>) {
      using Unsigned = std::make_unsigned_t<Sum>;
      return static_cast<Sum>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
    } else {
      return a + b;
    }
  }
  static Sum multiply(Sum a, Sum b) {
    if constexpr (std::is_integral_v<Sum> && !std::is_same_v<Sum, bool>) {
      return static_cast<Sum>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

// Element: as stored. Sum: the accumulation type. Inputs are read in order; all inputs of a block are
// read before any output of it is written, so outputs may be the inputs.
template <class Element, class Sum, class Combine>
void reduce_blocks(const std::vector<const Element*>& inputs, const std::vector<Element*>& outputs,
                   int64_t numel, Sum divisor, Combine combine) {
  constexpr int64_t kBlock = 512;
  std::array<Sum, kBlock> sums;
  std::array<Element, kBlock> rounded;
  for (int64_t start = 0; start < numel; start += kBlock) {
    const int64_t count = std::min(kBlock, numel - start);
    for (int64_t i = 0; i < count; ++i) sums[i] = static_cast<Sum>(inputs[0][start + i]);
    for (size_t j = 1; j < inputs.size(); ++j) {
      const Element* input = inputs[j] + start;
      for (int64_t i = 0; i < count; ++i) sums[i] = combine(sums[i], static_cast<Sum>(input[i]));
    }
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (!std::is_integral_v<Sum>) sums[i] = sums[i] / divisor;
      rounded[i] = static_cast<Element>(sums[i]);
    }
    for (Element* output : outputs) std::copy_n(rounded.begin(), count, output + start);
  }
}

template <class Element, class Sum>
void reduce_typed(const std::vector<const Element*>& inputs, const std::vector<Element*>& outputs,
                  int64_t numel, ReduceOp op) {
  const auto one = static_cast<Sum>(1);
  const auto run = [&](Sum divisor, auto combine) {
    reduce_blocks<Element, Sum>(inputs, outputs, numel, divisor, combine);
  };
  switch (op) {
    case ReduceOp::kSum: return run(one, &Wrapping<Sum>::add);
    case ReduceOp::kAvg: return run(static_cast<Sum>(inputs.size()), &Wrapping<Sum>::add);
    case ReduceOp::kProduct: return run(one, &Wrapping<Sum>::multiply);
    case ReduceOp::kMax: return run(one, [](Sum a, Sum b) { return (a != a || a > b) ? a : b; });
    case ReduceOp::kMin: return run(one, [](Sum a, Sum b) { return (a != a || a < b) ? a : b; });
  }
}

}  // namespace shardproof::sim
