// Changes that planted faults make to the tensors of a call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::sim {

// All functions write to `tensors`, whose elements are numbered through in row-major order, and
// return a description of the change.

// "its 12 elements became zeros"
std::string zero(const std::vector<at::Tensor>& tensors);
// "its 12 elements counted twice"
std::string twice(const std::vector<at::Tensor>& tensors);
// Flips `bit` (counted from the lowest; -1: the lowest of the exponent or of an integer) of
// `element` (-1: the one of largest magnitude). "bit 52 of element 7: 0.25 became 0.5". Throws
// Error(kBadInput) when there is no such bit or element.
std::string flip_bit(const std::vector<at::Tensor>& tensors, int64_t element, int64_t bit);
// Copies the values of `before`. Throws Error(kBadInput) when sizes or dtypes differ.
std::string outdate(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& before);

}  // namespace shardproof::sim
