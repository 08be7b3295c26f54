// What a planted fault does to the tensors of one call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::sim {

// All of these write into `tensors`, whose elements count one after another in row-major order, and
// say what they did.

// "its 12 elements became zeros"
std::string zero(const std::vector<at::Tensor>& tensors);
// "its 12 elements counted twice"
std::string twice(const std::vector<at::Tensor>& tensors);
// Flips `bit` (from the lowest; -1: the lowest of the exponent, of integers the lowest) of
// `element`
// (-1: the one of the largest magnitude). "bit 52 of element 7: 0.25 became 0.5". Throws
// Error(kBadInput): no such bit or element.
std::string flip_bit(const std::vector<at::Tensor>& tensors, int64_t element, int64_t bit);
// Takes the values of `before`. Throws Error(kBadInput): other sizes or dtypes.
std::string outdate(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& before);

}  // namespace shardproof::sim
