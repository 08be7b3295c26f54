// Which stream a dropout draws from, by how the tensor is held over tp.
//
//   kAlike   every tp rank holds the same elements, and must drop the same ones: the stream of
//            where it stands (outside of forks: the data parallel one, equal on all tp ranks)
//   kParts   each tp rank holds other elements (features, heads, or with sequence parallelism
//            tokens) and must drop independently: the model parallel stream
//
// Over dp both agree: the streams do not depend on it.
#pragma once

#include "random/dropout.h"

namespace shardproof {

enum class HeldOverTp { kAlike, kParts };

// As dropout(), in the right stream.
at::Tensor region_dropout(const at::Tensor& x, double p, HeldOverTp held, RngTracker& rng,
                          std::string_view place);

}  // namespace shardproof
