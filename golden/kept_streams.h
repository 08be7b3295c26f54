// The random streams of a policy, those of all stages and tp ranks on one device: a second
// implementation without tracker and files.
//
//   draw_alike   a stream for each stage, seeded with the case's seed + 100 * stage
//   draw_parts   a stream for each stage and tp rank, seeded with seed + 100 * stage + 2718 +
//   tp_rank
//
// A load by as many stages and tp ranks continues the streams. Of an axis whose number has changed,
// the stream of a single stage or rank goes to all; several restart from the first one's seed, the
// step and their place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::golden {

class KeptStreams {
 public:
  KeptStreams(int64_t seed, int64_t stages, int64_t tp_size);

  // Draws `count` numbers from the common stream, or from each part. Returns the log of the draws
  // as in observe/draw_log.h: [stages, 1, 5] and [stages * tp, 1, 5].
  at::Tensor draw_alike(int64_t count);
  at::Tensor draw_parts(int64_t count);
  // Sets the streams to those of ranks that load the streams saved at `step`.
  void load(int64_t stages, int64_t tp_size, int64_t step);

 private:
  struct Stream {
    uint64_t seed = 0;
    int64_t offset = 0;  // numbers drawn so far
    bool operator==(const Stream&) const = default;
  };
  // Those of a purpose, [stages][ranks]. `ranks` is 1 where all ranks of a stage share one.
  struct Streams {
    std::string name;
    std::vector<std::vector<Stream>> of = {};
    at::Tensor draw(int64_t count);
    void load(int64_t stages, int64_t ranks, int64_t step);
  };

  Streams alike_, parts_;
};

}  // namespace shardproof::golden
