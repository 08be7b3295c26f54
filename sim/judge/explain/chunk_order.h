// The golden's chunks along a dim in another order: shards put together wrongly, zigzag confused,
// one rank's part in the place of others.
#pragma once

#include <optional>
#include <vector>

#include "sim/judge/explain/assembled.h"
#include "sim/judge/explain/diagnose.h"

namespace shardproof::sim {

// Tries every number of chunks from `fewest` to `most` that divides a dim, and those of the mesh
// (the size of an axis, and twice that) where they do not.
std::optional<Explanation> explain_chunk_order(const Assembled& tensor, const Mesh& mesh,
                                               int64_t fewest, int64_t most);

// What an order of chunks is, if the mesh has a name for it. `order[i]`: the golden's chunk that
// stands in place i.
std::string likely_chunk_order(const Mesh& mesh, const std::vector<int64_t>& order);

}  // namespace shardproof::sim
