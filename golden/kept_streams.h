// The random streams that a policy keeps, those of all tp ranks on one device: written a second
// time without tracker and files.
//
//   alike    one stream, which begins with the seed: every rank has it
//   parts    a stream for each tp rank, from seed + 2718 + tp_rank
//
// A load over as many tp ranks goes on with them. Over other ones the parts begin anew, from the
// first one's seed, the step and the tp rank; a part that one tp rank had alone goes to all.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::golden {

class KeptStreams {
 public:
  KeptStreams(int64_t seed, int64_t tp_size);

  // Draws `count` numbers from the stream of all, or from each part. Who drew what, as
  // observe/draw_log.h has it: [1, 1, 5] and [tp, 1, 5].
  at::Tensor draw_alike(int64_t count);
  at::Tensor draw_parts(int64_t count);
  // As `tp_size` ranks have them when they load these, saved at `step`.
  void load(int64_t tp_size, int64_t step);

 private:
  struct Stream {
    std::string name;
    uint64_t seed = 0;
    int64_t offset = 0;  // numbers drawn since
  };
  static at::Tensor draw(Stream& stream, int64_t count);

  Stream alike_;
  std::vector<Stream> parts_;
};

}  // namespace shardproof::golden
