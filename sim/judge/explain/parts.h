// Wrong in parts: certain rows, positions or samples, a factor per sample, zeros in other places.
#pragma once

#include <optional>

#include "sim/judge/explain/assembled.h"
#include "sim/judge/explain/diagnose.h"

namespace shardproof::sim {

// Whole rows (samples, or indices of the first dim) that are the golden's times a factor of their
// own: a normalisation by something local.
std::optional<Explanation> explain_row_factors(const Assembled& tensor);
// Rows of zeros that lie k places beside the golden's along the positions: a mask that is off.
std::optional<Explanation> explain_mask_shift(const Assembled& tensor);
// Wrong only at certain indices. Always the last resort, may be nothing.
std::optional<Explanation> explain_part(const Assembled& tensor, const Mesh& mesh);

}  // namespace shardproof::sim
