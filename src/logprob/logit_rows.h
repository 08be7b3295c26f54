// Processes logits by blocks of rows, so that no other tensor of their size is held.
//
// Every block uses one buffer of the wider type, which is allocated once.
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

namespace shardproof {

class FunctionContext;

// Options of the functions over a sharded vocabulary.
struct LogprobOptions {
  // true: keeps nothing for a backward. Default: true when gradients are off.
  std::optional<bool> inference_only = std::nullopt;
  // Labels of the collectives are "<label> max", "<label> sum", "<label> picked".
  std::string label = "logprobs";
  // Divides the logits. Must be above 0.
  double temperature = 1.0;
  // Rows per block; 0: as many as fit a buffer of kBlockBytes. Values do not depend on it.
  int64_t block_rows = 0;
};
constexpr int64_t kBlockBytes = int64_t{1} << 21;

// options.inference_only, or its default.
bool keeps_nothing(const LogprobOptions& options);

// float64 stays float64; everything else becomes float32.
at::ScalarType logprob_type(at::ScalarType logits);

// This rank's columns, and the axis over which the others lie.
struct VocabShard {
  VocabRange range = {};
  Communicator* tp = nullptr;  // null: this rank holds every column
  std::string label = {};
  double temperature = 1.0;
  int64_t block_rows = 0;

  // Throws Error(kBadInput) for a temperature that is not above 0. Asserts that `columns` are this
  // rank's share of `vocab_size` ids, or all of them.
  static VocabShard of(int64_t columns, int64_t vocab_size, Communicator& tp,
                       const LogprobOptions& options);
  // Saves and loads what a backward needs, without the communicator and the label.
  void save(FunctionContext& context) const;
  static VocabShard load(FunctionContext& context, int64_t columns);
  // Reduces over tp with the label "<label><what>"; returns `tensor` itself where nothing is split.
  at::Tensor reduce(const at::Tensor& tensor, ReduceOp op, const char* what) const;
};

// Throws Error(kBadInput) when a target is outside 0..vocab_size-1.
void check_targets(const at::Tensor& target, int64_t vocab_size);

// r neighboring rows, indexed as if the leading dims were one, in row-major order.
struct RowBlock {
  int64_t first = 0;
  int64_t count = 0;
  at::Tensor logits;  // [r, counted], a view
};
// The blocks of logits [.., V_tp] of any strides, as views.
std::vector<RowBlock> row_blocks(const at::Tensor& logits, const VocabShard& shard);
// The number of rows of a block with `columns` columns; `requested` rows if that is positive.
int64_t rows_per_block(int64_t columns, at::ScalarType wide, int64_t requested);

// Whether row_kernels.h can process `rows` [r, counted]: float32 or bfloat16 in main memory,
// contiguous columns, and a temperature whose inverse fits float32.
bool has_row_kernels(const at::Tensor& rows, const VocabShard& shard);

// Uninitialized memory for a gradient of `logits`. A large one in main memory is requested in pages
// of 2 MiB, which the system provides several times as fast as small ones.
at::Tensor empty_gradient(const at::Tensor& logits);

// The reused buffer.
class BlockBuffer {
 public:
  explicit BlockBuffer(at::ScalarType wide) : wide_(wide) {}
  // A part of the buffer with the shape of `logits`; its contents are undefined.
  at::Tensor part(const at::Tensor& logits);
  // [r, counted]: (logits - max[:, None]) / temperature, written to the buffer.
  at::Tensor shifted(const at::Tensor& logits, const at::Tensor& max, double temperature);

 private:
  at::ScalarType wide_;
  at::Tensor memory_;
};

// [r] in the wider type: the largest logit of each row over this rank's counted columns, without
// the temperature. -infinity where there is no column or all are -infinity.
at::Tensor row_max(const at::Tensor& logits, at::ScalarType wide);

// Divides `difference`, of two logits, in place by the temperature. Divide differences only: logits
// far from 0 would lose their last digits.
at::Tensor tempered(at::Tensor difference, double temperature);

// `max` for use in a subtraction: 0 where it is -infinity.
at::Tensor finite_max(const at::Tensor& max);

}  // namespace shardproof
