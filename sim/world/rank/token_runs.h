// The tokens of the batch that a rank held, as runs of neighbors.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "train/context_cut.h"

namespace shardproof::sim::world {

// Neighboring positions of one sample; padding has sample -1, first 0.
struct TokenRun {
  int64_t sample = 0;
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const TokenRun&) const = default;
};

// One list for each row of `token_map` [b, T], whose entries are sample * seq_len + position or -1.
std::vector<std::vector<TokenRun>> token_runs(const at::Tensor& token_map, int64_t seq_len);

// A list of microbatches, each {"held": rows of [sample, first, count]} and, with
// `with_whole_rows`, "rows", the same before cp and ulysses cut them. Null if one microbatch has
// more than `most_positions` positions.
nlohmann::json held_json(const std::vector<HeldTokens>& held, int64_t seq_len, bool with_whole_rows,
                         int64_t most_positions = 4096);

}  // namespace shardproof::sim::world
