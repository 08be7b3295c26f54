// The random streams that one device takes the masks of all ranks from: the answer of workloads
// with dropout, written a second time without the tracker.
//
//   parts over tp    the stream of seed + 2718 + t makes the mask of tp rank t's part
//   alike over tp    the stream of the seed itself makes the mask of all of them
//   over dp          every dp rank begins with the same streams: each one's samples have the mask
//                    that dp rank 0's have
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/proofs/workload.h"

namespace shardproof::sim {

class DealtStreams {
 public:
  // As many model parallel streams as tp has ranks; `dp_ranks` of the mesh too: one device has to
  // be told whose masks it makes. Throws Error(kBadInput) of a number below 1; so do keep_* where a
  // size does not divide.
  DealtStreams(int64_t seed, int64_t tp_ranks, int64_t dp_ranks);
  ~DealtStreams();

  // [samples, ..] bool of the next dropout: kept elements of a tensor that tp ranks hold alike.
  at::Tensor keep_alike(at::IntArrayRef shape, double p);
  // The same of one that they hold parts of, cut evenly along `dim`.
  at::Tensor keep_parts(at::IntArrayRef shape, int64_t dim, double p);
  // The draws of the keep_* call before: [1, 1, 5] or [tp_ranks, 1, 5] (observe/draw_log.h); with
  // p = 0 none: [1, 0, 5] or [tp_ranks, 0, 5].
  const at::Tensor& last_draws() const { return last_draws_; }

 private:
  struct Stream;
  at::Tensor keep_from(Stream& stream, std::vector<int64_t> shape, double p);
  int64_t dp_ranks_;
  std::vector<std::unique_ptr<Stream>> streams_;  // the data stream, then those of tp
  at::Tensor last_draws_;
};

// x * keep / (1 - p); 0 with p = 1.
at::Tensor drop_by(const at::Tensor& x, const at::Tensor& keep, double p);

// Throws Error(kRefused) unless tp_ranks and dp_ranks are those of the mesh.
void check_dealt(const Options& options, const Mesh& mesh);

}  // namespace shardproof::sim
