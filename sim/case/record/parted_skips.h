// Skipped steps that depend on how a gradient is summed.
//
// One device sums a float16 gradient over the whole batch in float16. Ranks, and microbatches, sum
// a part each, and the parts in float32, where nothing overflows. So correct runs skip different
// steps where the whole sum exceeds float16 and its parts do not, or where parts do that cancel.
#pragma once

namespace shardproof::sim {

// In the metadata of a golden in float16: the steps, "1 4", in which sums of parts decide otherwise
// than the golden does.
inline constexpr const char* kPartedSkips = "parted_skips";

}  // namespace shardproof::sim
