// Who drew random numbers, from which stream, and where in it: what tells two ranks that share a
// mask from two that only look alike.
//
// A place is a name in the code ("attention dropout"), the same on every rank. The draws of a place
// are judged as one integer tensor beside those that one device says each rank should have made:
//
//   "draw.<place>"   [1, n, 5] int64, n draws in order; of the golden [streams, n, 5]
//   columns          stream (stream_id), seed, offset, count, state
//
// Ranks that must draw alike hold the same row of it, ranks that must differ another one each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "observe/probe.h"

namespace shardproof {

struct RandomDraw {
  std::string place;
  std::string stream;  // "model-parallel-rng"
  uint64_t seed = 0;   // that the stream began with
  int64_t offset = 0;  // numbers drawn from it before
  int64_t count = 0;   // numbers drawn here
  uint64_t state = 0;  // generator_digest() before: also draws that nobody told of move it
  Phase phase = Phase::kForward;  // kRecompute: made again in a backward
};

enum DrawColumn : int64_t {
  kDrawStream,
  kDrawSeed,
  kDrawOffset,
  kDrawCount,
  kDrawState,
  kDrawColumns
};

// The prefix of what is observed of a place.
inline constexpr const char* kDrawPrefix = "draw.";

// One stream's number in the column, below 2^52; the same in every process.
int64_t stream_id(std::string_view stream);
// Of a generator's whole state, below 2^52. Reads it only.
uint64_t generator_digest(const at::Generator& generator);

// The draws of one rank, in the order in which they were made.
class DrawLog {
 public:
  void add(RandomDraw draw) { draws_.push_back(std::move(draw)); }
  const std::vector<RandomDraw>& draws() const { return draws_; }
  void clear() { draws_.clear(); }
  // [1, n, 5] int64 of this place in this phase; n = 0 when nothing was drawn there.
  at::Tensor tensor(std::string_view place, Phase phase = Phase::kForward) const;

 private:
  std::vector<RandomDraw> draws_;
};

// The same of a list of draws, each of which counts whatever its place.
at::Tensor draw_tensor(const std::vector<RandomDraw>& draws);

// "draw.<place>" for a probe. `layout` says which ranks must differ: Shard(0) over those axes;
// over all others they must draw alike.
Observation draw_observation(const DrawLog& log, const std::string& place, const Layout& layout,
                             int64_t step);

}  // namespace shardproof
