// Logits walked a block of rows at a time, so that nothing else of their size is ever held.
//
// Every block works in one buffer of the wider type that is made once and used again.
//
// Legend: R rows (all leading dims), V_tp columns of this rank, r rows of one block.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "logprob/vocab_range.h"

namespace torch::autograd {
struct AutogradContext;
}

namespace shardproof {

// What every function over a sharded vocabulary is told.
struct LogprobOptions {
  // true: nothing is kept for a backward. Default: when gradients are off.
  std::optional<bool> inference_only = std::nullopt;
  // Of the collectives: "<label> max", "<label> sum", "<label> picked".
  std::string label = "logprobs";
  // Logits are divided by it first. Above 0.
  double temperature = 1.0;
  // Rows worked on at a time; 0: as many as fit a buffer of kBlockBytes. Values do not depend on
  // it.
  int64_t block_rows = 0;
};
constexpr int64_t kBlockBytes = int64_t{1} << 21;

// options.inference_only, or its default.
bool keeps_nothing(const LogprobOptions& options);

// float64 stays float64; everything else becomes float32.
at::ScalarType logprob_type(at::ScalarType logits);

// This rank's columns and the axis that holds the others.
struct VocabShard {
  VocabRange range = {};
  Communicator* tp = nullptr;  // null: this rank holds every column
  std::string label = {};
  double temperature = 1.0;
  int64_t block_rows = 0;

  // Throws Error(kBadInput): a temperature that is not above 0. Asserts that `columns` are this
  // rank's share of `vocab_size` ids, or all of them.
  static VocabShard of(int64_t columns, int64_t vocab_size, Communicator& tp,
                       const LogprobOptions& options);
  // For a backward, which needs neither the communicator nor the label.
  void save(torch::autograd::AutogradContext& context) const;
  static VocabShard load(torch::autograd::AutogradContext& context, int64_t columns);
  // Over tp, recorded as "<label><what>"; `tensor` itself where nothing is split.
  at::Tensor reduce(const at::Tensor& tensor, ReduceOp op, const char* what) const;
};

// Throws Error(kBadInput) when a target is outside 0..vocab_size-1.
void check_targets(const at::Tensor& target, int64_t vocab_size);

// r neighbouring rows, counted as if the leading dims were one, in row-major order.
struct RowBlock {
  int64_t first = 0;
  int64_t count = 0;
  at::Tensor logits;  // [r, counted], a view
};
// The blocks of logits [.., V_tp] of any strides. Makes views only.
std::vector<RowBlock> row_blocks(const at::Tensor& logits, const VocabShard& shard);
// How many rows of `columns` columns one block has.
int64_t rows_per_block(int64_t columns, at::ScalarType wide, int64_t asked);

// Whether row_kernels.h works on `rows` [r, counted]: float32 or bfloat16 in main memory, columns
// side by side, at a temperature whose inverse float32 holds.
bool has_row_kernels(const at::Tensor& rows, const VocabShard& shard);

// Uninitialised memory for a gradient of `logits`. A large one in main memory comes fresh from the
// system: it is asked for in pages of 2 MiB, which are there several times as fast as small ones.
at::Tensor empty_gradient(const at::Tensor& logits);

// The reused buffer.
class BlockBuffer {
 public:
  explicit BlockBuffer(at::ScalarType wide) : wide_(wide) {}
  // A part of it of this shape, whatever it holds.
  at::Tensor part(const at::Tensor& logits);
  // [r, counted]: (logits - max[:, None]) / temperature, written to the buffer.
  at::Tensor shifted(const at::Tensor& logits, const at::Tensor& max, double temperature);

 private:
  at::ScalarType wide_;
  at::Tensor memory_;
};

// Of each row over this rank's counted columns, [r] in the wider type: the largest logit, whatever
// the temperature. -infinity where there is no column or all are -infinity.
at::Tensor row_max(const at::Tensor& logits, at::ScalarType wide);

// `difference` of two logits, divided by the temperature in its place. Differences are what is
// divided: logits far from 0 would lose their last digits to it.
at::Tensor tempered(at::Tensor difference, double temperature);

// What a subtraction may use in its place: 0 where it is -infinity.
at::Tensor finite_max(const at::Tensor& max);

}  // namespace shardproof
