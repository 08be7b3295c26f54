// The arithmetic of one cut of a Layout: the indices that it keeps of a row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/layout.h"

namespace shardproof {

// The entries of `indices` that `coordinate` of an axis with `axis_size` ranks keeps, in local
// order; -1 marks padding. Throws Error(kRefused) when the cut does not fit the number of indices,
// and Error(kBadInput) when the cut contradicts itself (blocks that do not sum, parts below 1).
std::vector<int64_t> apply_cut(const Cut& cut, const std::vector<int64_t>& indices,
                               int64_t axis_size, int64_t coordinate);

// The number of the piece of this cut that the coordinate holds; equal numbers hold equal copies.
int64_t piece_of(const Cut& cut, int64_t axis_size, int64_t coordinate);

std::string describe_cut(const Cut& cut);

}  // namespace shardproof
