// The first values of a weight as one device draws them: the answer of workloads whose layers draw
// their own, written a second time without them.
//
//   master       one draw of the whole weight
//   own stream   a draw of each tp rank's part from the stream of its seed, put together
//
// Values are drawn in float64; a layer in a lower precision rounds them.
#pragma once

#include "sim/proofs/tp_layer.h"

namespace shardproof::sim {

inline constexpr int64_t kWeightSeed = 90;
inline constexpr double kWeightStd = 0.5;

// The seed and name of the stream that tp rank `tp_rank` draws its part of a weight from.
struct WeightStream {
  std::string name;
  uint64_t seed = 0;
};
WeightStream weight_stream(bool expert, int64_t tp_rank);

struct DrawnWeight {
  at::Tensor values;      // float64, whole
  at::Tensor draws = {};  // [tp_ranks, 1, 5] (observe/draw_log.h); of a master undefined
};
DrawnWeight drawn_from_master(const TpLayerSpec& spec);
// Throws Error(kRefused): blocks that do not divide.
DrawnWeight drawn_from_streams(const TpLayerSpec& spec, int64_t tp_ranks);

}  // namespace shardproof::sim
