// The golden in another place: what the ranks held is shifted, transposed, or read in another
// order.
#pragma once

#include <optional>
#include <vector>

#include "sim/judge/explain/assembled.h"
#include "sim/judge/explain/diagnose.h"

namespace shardproof::sim {

// Shifted by at most 16 along a dim. What fell in at the border, padding and dropped positions are
// no evidence for or against it.
std::optional<Explanation> explain_shift(const Assembled& tensor);
// Two dims of one size exchanged.
std::optional<Explanation> explain_transposition(const Assembled& tensor);
// Two neighbouring dims of a rank's own part whose memory was read column by column: a strided
// tensor taken for a dense one, or a view where a transpose was due.
std::optional<Explanation> explain_read_order(const std::vector<const Piece*>& pieces);

}  // namespace shardproof::sim
