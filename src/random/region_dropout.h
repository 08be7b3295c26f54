// Chooses the stream of a dropout by how the tensor is held over tp.
//
//   kAlike   every tp rank holds the same elements and must drop the same ones: the current stream
//            (outside of forks the data parallel one, equal on all tp ranks)
//   kParts   each tp rank holds other elements (features, heads, or with sequence parallelism
//            tokens) and must drop independently: the model parallel stream
//
// The streams are the same for all dp ranks.
#pragma once

#include "random/dropout.h"

namespace shardproof {

enum class HeldOverTp { kAlike, kParts };

// Calls dropout() with the right stream.
at::Tensor region_dropout(const at::Tensor& x, double p, HeldOverTp held, RngTracker& rng,
                          std::string_view place);

}  // namespace shardproof
