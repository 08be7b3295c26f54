// Which rows of a tensor are compared when a case samples them (sample_rows). A row is an index of
// the first dim of the full tensor: a sample of an activation, a row of a weight.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/case/record/golden_record.h"

namespace shardproof::sim {

// The rows of a tensor whose first dim has `all` of them, ascending; empty: all are compared. All
// activations have the same samples, and the gradient and state of a parameter have its rows.
std::vector<int64_t> drawn_rows(const GoldenFacts& facts, int64_t all, int64_t count, int64_t seed);
// Of tensors of tokens.
std::vector<int64_t> drawn_samples(int64_t all, int64_t count, int64_t seed);

// The shape of the tensor of which `facts.rows` are in a tensor of `shape`, and the reverse.
std::vector<int64_t> full_shape(const GoldenFacts& facts, std::vector<int64_t> shape);
std::vector<int64_t> drawn_shape(const std::vector<int64_t>& rows, std::vector<int64_t> shape);

}  // namespace shardproof::sim
