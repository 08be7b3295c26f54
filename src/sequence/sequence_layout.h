// The token at each local position of a context-parallel rank: one map to cut and to restore.
//
//   cp_size = 2, one sequence of 8        rank 0           rank 1
//   kZigzag      2*cp chunks per sequence 0 1 | 6 7        2 3 | 4 5
//   kContiguous  cp chunks per sequence   0 1 2 3          4 5 6 7
//
//   packed, lengths 3 and 4, padded to 4 and 4 (token 3 of the row is padding, marked 3*)
//   kZigzag                               0 3* | 4 7       1 2 | 5 6
//   kContiguous                           0 1 | 4 5        2 3* | 6 7
//   kRow         cp chunks of the row     0 1 2 3*         4 5 6 7
//
// Zigzag balances causal attention, in which early tokens attend to few tokens and late ones to
// many; PyTorch calls it head-tail. kRow cuts without regard to sequences, as Ulysses does.
//
// Legend: T positions of the padded row, T_cp = T / cp_size positions of one rank.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/training_choices.h"

namespace shardproof {

// The two chunks of 2*cp_size that one rank holds.
constexpr std::array<int64_t, 2> zigzag_chunks(int64_t cp_rank, int64_t cp_size) {
  return {cp_rank, 2 * cp_size - 1 - cp_rank};
}
static_assert(zigzag_chunks(0, 2) == std::array<int64_t, 2>{0, 3});
static_assert(zigzag_chunks(2, 3) == std::array<int64_t, 2>{2, 3});

// The required divisor of a sequence's padded length: 2*cp_size for zigzag (1 on one rank), cp_size
// for contiguous, and 1 for kRow, which only requires that cp_size divides the row's length.
int64_t sequence_multiple(ContextLayout kind, int64_t cp_size);

// One sequence of the row: `length` tokens, then padding up to `padded_length`.
struct SequenceSpan {
  int64_t start = 0;  // in the padded row
  int64_t length = 0;
  int64_t padded_length = 0;
  bool operator==(const SequenceSpan&) const = default;
};

// Neighboring positions of one sequence that are also neighbors among the rank's local positions.
struct SequenceChunk {
  int64_t sequence = 0;
  int64_t begin = 0;        // position of the first one in its sequence
  int64_t length = 0;       // including padding
  int64_t real_length = 0;  // number of tokens, which come before the padding; may be 0
  int64_t local_begin = 0;  // begin of the chunk among the rank's local positions
  bool operator==(const SequenceChunk&) const = default;
};

class SequenceLayout {
 public:
  // Samples of a [B, S] batch: one sequence of `seq_len` tokens, padded at the end to `padded_len`
  // (-1: to the next length that the layout can cut). Throws Error(kRefused) when `padded_len` does
  // not divide by sequence_multiple() (kRow: by cp_size), and Error(kBadInput) for `padded_len`
  // below `seq_len`, a negative length, and cp_size below 1.
  static SequenceLayout whole(int64_t seq_len, int64_t cp_size, ContextLayout kind,
                              int64_t padded_len = -1);
  // A packed row: sequence i has cu_seqlens[i+1] - cu_seqlens[i] tokens and lies at
  // cu_seqlens_padded[i]. Both have N+1 entries from 0. Lengths of 0 are allowed. If the row
  // continues after the last sequence, pass the rest as a sequence of length 0. Throws
  // Error(kBadInput) for lists that do not start at 0, decrease or differ in size, and for a
  // sequence longer than its padded length; Error(kRefused) for a padded length that the layout
  // cannot cut.
  static SequenceLayout packed(const std::vector<int64_t>& cu_seqlens,
                               const std::vector<int64_t>& cu_seqlens_padded, int64_t cp_size,
                               ContextLayout kind);
  // An explicit order of one sequence: rank r holds seq_index[r * T_cp], seq_index[r * T_cp + 1],
  // ... The first `seq_len` positions (-1: all T) are tokens, the rest is padding. Throws
  // Error(kBadInput) for an index that is not a permutation of 0..T-1, a T that does not divide by
  // cp_size, and `seq_len` above T.
  static SequenceLayout from_seq_index(const std::vector<int64_t>& seq_index, int64_t cp_size,
                                       int64_t seq_len = -1);

  int64_t cp_size() const { return static_cast<int64_t>(chunks_.size()); }
  int64_t num_positions() const { return static_cast<int64_t>(order_.size()); }  // T
  int64_t local_positions() const { return num_positions() / cp_size(); }        // T_cp
  const std::vector<SequenceSpan>& sequences() const { return sequences_; }

  // [T] positions in the padded row of all ranks' local positions, rank after rank. A gather in
  // rank order returns the row in this order.
  const std::vector<int64_t>& order() const { return order_; }
  // [T] position in that gathered row of each position of the padded row: the inverse of order().
  std::vector<int64_t> inverse_order() const;

  // [T_cp] each, for the local positions of one rank including padding: the position in the padded
  // row; the same with -1 for padding.
  std::vector<int64_t> indices(int64_t cp_rank) const;
  std::vector<int64_t> token_indices(int64_t cp_rank) const;
  // In local order. Zigzag: two chunks per sequence, even if they touch; none of length 0.
  const std::vector<SequenceChunk>& chunks(int64_t cp_rank) const;

 private:
  SequenceLayout(std::vector<SequenceSpan> sequences, int64_t cp_size);
  void add_chunk(int64_t cp_rank, int64_t sequence, int64_t begin, int64_t length);
  void cut_each_sequence(ContextLayout kind);
  void cut_row();
  void order_from_chunks();

  std::vector<SequenceSpan> sequences_;
  std::vector<std::vector<SequenceChunk>> chunks_;  // by rank
  std::vector<int64_t> order_;
};

}  // namespace shardproof
