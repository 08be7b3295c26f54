// The random streams of a policy, those of all tp ranks on one device: a second implementation
// without tracker and files.
//
//   draw_alike   one stream, seeded with the case's seed, which is the same on every rank
//   draw_parts   a stream for each tp rank, seeded with seed + 2718 + tp_rank
//
// A load by as many tp ranks continues the streams. A load by another number restarts the parts
// from the first part's seed, the step and the tp rank; the part of a single tp rank goes to all.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::golden {

class KeptStreams {
 public:
  KeptStreams(int64_t seed, int64_t tp_size);

  // Draws `count` numbers from the common stream, or from each part. Returns the log of the draws
  // as in observe/draw_log.h: [1, 1, 5] and [tp, 1, 5].
  at::Tensor draw_alike(int64_t count);
  at::Tensor draw_parts(int64_t count);
  // Sets the streams to those of `tp_size` ranks that load the streams saved at `step`.
  void load(int64_t tp_size, int64_t step);

 private:
  struct Stream {
    std::string name;
    uint64_t seed = 0;
    int64_t offset = 0;  // numbers drawn so far
  };
  static at::Tensor draw(Stream& stream, int64_t count);

  Stream alike_;
  std::vector<Stream> parts_;
};

}  // namespace shardproof::golden
