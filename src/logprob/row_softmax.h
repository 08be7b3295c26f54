// The softmax of sharded rows: partial results of each rank's columns, and their combination.
//
// Each rank subtracts its own largest logit before exp and rescales once the global one is known.
// The logits are read once, and a sum is at least 1 on the rank that holds the largest.
//
// Legend: R rows, r rows of one block, V_tp columns of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include "logprob/logit_rows.h"

namespace shardproof {

// The position of each row's target among this rank's columns.
struct LocalTarget {
  at::Tensor column;  // [R] int64; 0 where this rank does not own it
  at::Tensor owned;   // [R] bool
  static LocalTarget of(const at::Tensor& target, const VocabRange& range);  // target [R]
};

// Filled block by block, then reduced over tp. All tensors are [R], in the wider type.
class RowSoftmax {
 public:
  // kSumOfLogits: also computes sum_of_shifted() of each row, for means over the vocabulary.
  enum Also { kNoMore, kSumOfLogits };
  RowSoftmax(int64_t rows, const VocabShard& shard, const at::TensorOptions& wide,
             Also also = kNoMore);
  // Adds rows `first`.. of this rank's counted columns, [r, counted].
  void add(int64_t first, const at::Tensor& logits, const LocalTarget& target);
  // Returns the logprob of each target by all_reduce(max), all_reduce(sum of exp) and
  // all_reduce(picked logit); with kSumOfLogits then all_reduce(sum of logits - max).
  at::Tensor reduce(const LocalTarget& target);
  // After reduce(): the largest logit over tp and the sum of exp((logit - max) / temperature).
  const at::Tensor& max() const { return max_; }
  const at::Tensor& sum() const { return sum_; }
  // After reduce() with kSumOfLogits: the sum of (logit - max) / temperature over the counted
  // columns of tp.
  const at::Tensor& sum_of_shifted() const { return shifted_; }

 private:
  const VocabShard& shard_;
  BlockBuffer buffer_;
  at::Tensor max_, sum_, picked_;
  at::Tensor shifted_;  // undefined without kSumOfLogits
};

// The share of the mean over the vocabulary: the gradient is that of (1 - share) * logprob of the
// target + share * mean of all logprobs.
struct VocabMean {
  double share = 0;
  int64_t vocab_size = 1;
};

// d logprob / d logit[v] = ((v is the target) - softmax[v]) / temperature, times each row's
// gradient. A row whose gradient is 0 gets exactly 0, whatever its logits are (NaN included).
class LogprobGradient {
 public:
  LogprobGradient(const VocabShard& shard, at::Tensor max, at::Tensor sum, LocalTarget target,
                  const at::Tensor& grad, VocabMean mean = {});  // max, sum, grad [R]
  // [r, counted] in the wider type, in a buffer that the next call overwrites.
  at::Tensor block(int64_t first, const at::Tensor& logits);
  // Writes the same, cast to the logits' dtype, to `out` [r, counted], which must be other memory.
  void write(int64_t first, const at::Tensor& logits, const at::Tensor& out);

 private:
  void write_rows(int64_t first, const at::Tensor& logits, const at::Tensor& out) const;

  const VocabShard& shard_;
  BlockBuffer buffer_;
  at::Tensor max_;
  LocalTarget target_;
  at::Tensor grad_at_target_;  // [R], 0 where another rank owns the target
  at::Tensor softmax_factor_;  // [R] -grad / (temperature * sum)
  at::Tensor everywhere_;      // [R] addend of every column, or undefined
  at::Tensor no_gradient_;     // [R] bool
};

// The gradient of logits [.., V_tp], in new memory: each block is rounded into its position,
// without a one-hot tensor or a softmax of the logits' size.
at::Tensor logits_gradient(const at::Tensor& logits, const VocabShard& shard,
                           LogprobGradient gradient);

}  // namespace shardproof
