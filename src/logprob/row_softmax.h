// The softmax of sharded rows: what each rank finds in its columns, and what all of them make of
// it.
//
// Each rank takes its own largest logit out before exp and rescales once the global one is known:
// the logits are read once, and a sum is at least 1 on the rank that holds the largest.
//
// Legend: R rows, r rows of one block, V_tp columns of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include "logprob/logit_rows.h"

namespace shardproof {

// Where each row's target is among this rank's columns.
struct LocalTarget {
  at::Tensor column;  // [R] int64; 0 where it is not owned
  at::Tensor owned;   // [R] bool
  static LocalTarget of(const at::Tensor& target, const VocabRange& range);  // target [R]
};

// Filled block by block, then reduced over tp. All [R], in the wider type.
class RowSoftmax {
 public:
  // kSumOfLogits: of each row sum_of_shifted() as well, for means over the vocabulary.
  enum Also { kNoMore, kSumOfLogits };
  RowSoftmax(int64_t rows, const VocabShard& shard, const at::TensorOptions& wide,
             Also also = kNoMore);
  // Rows `first`.. of this rank's counted columns, [r, counted].
  void add(int64_t first, const at::Tensor& logits, const LocalTarget& target);
  // all_reduce(max), all_reduce(sum of exp), all_reduce(picked logit): the logprob of each target.
  // kSumOfLogits: all_reduce(sum of logits - max) behind them.
  at::Tensor reduce(const LocalTarget& target);
  // After reduce(): the largest logit over tp and the sum of exp((logit - max) / temperature).
  const at::Tensor& max() const { return max_; }
  const at::Tensor& sum() const { return sum_; }
  // After reduce(), kSumOfLogits: the sum of (logit - max) / temperature over the counted columns
  // of tp.
  const at::Tensor& sum_of_shifted() const { return shifted_; }

 private:
  const VocabShard& shard_;
  BlockBuffer buffer_;
  at::Tensor max_, sum_, picked_;
  at::Tensor shifted_;  // undefined: not asked for
};

// A share of the mean over the vocabulary: the gradient is of (1 - share) * logprob of the target
// + share * mean of all logprobs.
struct VocabMean {
  double share = 0;
  int64_t vocab_size = 1;
};

// d logprob / d logit[v] = ((v is the target) - softmax[v]) / temperature, times each row's
// gradient. A row whose gradient is 0 gives exactly 0, whatever its logits are (NaN included).
class LogprobGradient {
 public:
  LogprobGradient(const VocabShard& shard, at::Tensor max, at::Tensor sum, LocalTarget target,
                  const at::Tensor& grad, VocabMean mean = {});  // max, sum, grad [R]
  // [r, counted] in the wider type, in a buffer that the next call writes again.
  at::Tensor block(int64_t first, const at::Tensor& logits);
  // The same, cast to its place: `out` [r, counted] in the logits' dtype, in other memory.
  void write(int64_t first, const at::Tensor& logits, const at::Tensor& out);

 private:
  bool has_kernels(const at::Tensor& logits) const;
  void write_rows(int64_t first, const at::Tensor& logits, const at::Tensor& out) const;

  const VocabShard& shard_;
  BlockBuffer buffer_;
  at::Tensor max_;
  LocalTarget target_;
  at::Tensor grad_at_target_;  // [R], 0 where another rank owns the target
  at::Tensor softmax_factor_;  // [R] -grad / (temperature * sum)
  at::Tensor everywhere_;      // [R] of every column, or undefined
  at::Tensor no_gradient_;     // [R] bool
};

}  // namespace shardproof
