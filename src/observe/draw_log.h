// A log of drawn random numbers with their stream and offset. It shows whether two equal masks come
// from one stream.
//
// A place is a name in the code ("attention dropout"), the same on every rank. The draws of a place
// are one integer tensor, which is compared with the golden's draws for each rank:
//
//   "draw.<place>"   [1, n, 5] int64, n draws in order; in the golden [streams, n, 5]
//   columns          stream (stream_id), seed, offset, count, state
//
// Ranks that must draw the same numbers hold the same row, others hold different rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "observe/draw_columns.h"
#include "observe/probe.h"

namespace shardproof {

struct RandomDraw {
  std::string place;
  std::string stream;  // "model-parallel-rng"
  uint64_t seed = 0;   // initial seed of the stream
  int64_t offset = 0;  // numbers drawn from it before this draw
  int64_t count = 0;   // numbers of this draw
  uint64_t state = 0;  // generator_digest() before this draw; unlogged draws change it too
  Phase phase = Phase::kForward;  // kRecompute: drawn again in a backward
};

// A digest below 2^52 of a generator's whole state, which it does not change.
uint64_t generator_digest(const at::Generator& generator);

// The draws of one rank, in the order in which they were made.
class DrawLog {
 public:
  void add(RandomDraw draw) { draws_.push_back(std::move(draw)); }
  const std::vector<RandomDraw>& draws() const { return draws_; }
  void clear() { draws_.clear(); }
  // [1, n, 5] int64 with the draws of this place in this phase; n = 0 when there are none.
  at::Tensor tensor(std::string_view place, Phase phase = Phase::kForward) const;

 private:
  std::vector<RandomDraw> draws_;
};

// [1, n, 5] int64 with all draws of the list, whatever their place.
at::Tensor draw_tensor(const std::vector<RandomDraw>& draws);

// The observation "draw.<place>" for a probe. `layout` is Shard(0) over the axes on which ranks
// must differ; over all others they must draw the same numbers.
Observation draw_observation(const DrawLog& log, const std::string& place, const Layout& layout,
                             int64_t step);

}  // namespace shardproof
