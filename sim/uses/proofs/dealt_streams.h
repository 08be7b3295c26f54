// The random streams from which one device draws the masks of all ranks: the golden of workloads
// with dropout, written without the tracker.
//
//   parts over tp    the stream of seed + 2718 + t makes the mask of tp rank t's part
//   equal over tp    the stream of the seed makes the mask of all tp ranks
//   over dp          all dp ranks begin with equal streams: each one's samples get the masks of
//                    dp rank 0's
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/uses/proofs/workload.h"

namespace shardproof::sim::proofs {

class DealtStreams {
 public:
  // `tp_ranks` and `dp_ranks` are the sizes of the mesh's axes. Throws Error(kBadInput) for a
  // number below 1; so does keep_* for a size that does not divide.
  DealtStreams(int64_t seed, int64_t tp_ranks, int64_t dp_ranks);
  ~DealtStreams();

  // [samples, ..] bool, true for kept elements: the next mask of a tensor that tp ranks hold
  // equally.
  at::Tensor keep_alike(at::IntArrayRef shape, double p);
  // The next mask of a tensor that is cut evenly over tp along `dim`.
  at::Tensor keep_parts(at::IntArrayRef shape, int64_t dim, double p);
  // The draws of the last keep_* call: [1, 1, 5] or [tp_ranks, 1, 5] (observe/draw_log.h); with
  // p = 0, [1, 0, 5] or [tp_ranks, 0, 5].
  const at::Tensor& last_draws() const { return last_draws_; }

 private:
  struct Stream;
  at::Tensor keep_from(Stream& stream, std::vector<int64_t> shape, double p);
  int64_t dp_ranks_;
  std::vector<std::unique_ptr<Stream>> streams_;  // the data stream, then one for each tp rank
  at::Tensor last_draws_;
};

// x * keep / (1 - p); with p = 1, zeros.
at::Tensor drop_by(const at::Tensor& x, const at::Tensor& keep, double p);

// Throws Error(kRefused) unless tp_ranks and dp_ranks equal those of the mesh.
void check_dealt(const Options& options, const Mesh& mesh);

}  // namespace shardproof::sim::proofs
