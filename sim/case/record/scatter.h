// How far the members of a golden's ensemble scatter: runs in a lower precision that differ by
// roundings, as correct sharded runs do.
#pragma once

#include <cstdint>

#include "sim/case/record/golden_record.h"

namespace shardproof::sim {

// Members of an ensemble in a lower precision beside the unperturbed run. With so many, a correct
// run whose error has the same distribution exceeds kScatters times the largest in less than one of
// 10^8 scalars (sim/judge/diff/tolerance.h).
inline constexpr int64_t kPerturbed = 16;

// Widens GoldenFacts::scatter and factor_scatter by one member. `value` is the tensor itself as
// float64; `member` has its shape, or is null where the member has no such tensor, because it skips
// another step.
void add_member(const TensorView& value, const TensorView* member, GoldenFacts& facts);

}  // namespace shardproof::sim
