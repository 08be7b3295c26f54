// Which token each local position of a context-parallel rank holds: one map to cut and to restore.
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
// Zigzag balances causal attention (early tokens attend to little, late ones to much); PyTorch
// calls it head-tail. kRow cuts whatever the sequences are, as Ulysses does.
//
// Legend: T positions of the padded row, T_cp = T / cp_size positions of one rank.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace shardproof {

enum class ContextLayout { kContiguous, kZigzag, kRow };
const char* context_layout_name(ContextLayout kind);  // "contiguous", "zigzag", "row"

// The two chunks of 2*cp_size that one rank holds.
constexpr std::array<int64_t, 2> zigzag_chunks(int64_t cp_rank, int64_t cp_size) {
  return {cp_rank, 2 * cp_size - 1 - cp_rank};
}
static_assert(zigzag_chunks(0, 2) == std::array<int64_t, 2>{0, 3});
static_assert(zigzag_chunks(2, 3) == std::array<int64_t, 2>{2, 3});

// What a sequence's padded length must be a multiple of: 2*cp_size for zigzag (1 on one rank),
// cp_size for contiguous, 1 for kRow, where only the row's length must divide by cp_size.
int64_t sequence_multiple(ContextLayout kind, int64_t cp_size);

// One sequence of the row: `length` tokens, then padding up to `padded_length`.
struct SequenceSpan {
  int64_t start = 0;  // in the padded row
  int64_t length = 0;
  int64_t padded_length = 0;
  bool operator==(const SequenceSpan&) const = default;
};

// Neighbouring positions of one sequence that a rank holds as neighbours.
struct SequenceChunk {
  int64_t sequence = 0;
  int64_t begin = 0;        // position within its sequence of the first one
  int64_t length = 0;       // padding included
  int64_t real_length = 0;  // the first so many are tokens, the rest is padding; may be 0
  int64_t local_begin = 0;  // where the chunk begins among the rank's local positions
  bool operator==(const SequenceChunk&) const = default;
};

class SequenceLayout {
 public:
  // Every sample of a [B, S] batch alike: one sequence of `seq_len` tokens, padded at the end to
  // `padded_len` (-1: to the next length that the layout can cut).
  // Throws Error(kRefused): `padded_len` does not divide by sequence_multiple() (kRow: by cp_size);
  // Error(kBadInput): `padded_len` below `seq_len`, a negative length, cp_size below 1.
  static SequenceLayout whole(int64_t seq_len, int64_t cp_size, ContextLayout kind,
                              int64_t padded_len = -1);
  // A packed row: sequence i has cu_seqlens[i+1] - cu_seqlens[i] tokens and lies at
  // cu_seqlens_padded[i]. Both have N+1 entries from 0. Lengths of 0 are allowed. Whatever the row
  // has beyond the last sequence is a sequence of padding alone: give it as one.
  // Throws Error(kBadInput): not from 0, decreasing, of unequal size, a sequence longer than its
  // padded place; Error(kRefused): a padded length that the layout cannot cut.
  static SequenceLayout packed(const std::vector<int64_t>& cu_seqlens,
                               const std::vector<int64_t>& cu_seqlens_padded, int64_t cp_size,
                               ContextLayout kind);
  // An explicit order of one sequence: rank r holds seq_index[r * T_cp], seq_index[r * T_cp + 1],
  // ... The first `seq_len` positions (-1: all T) are tokens, the rest is padding.
  // Throws Error(kBadInput): not a permutation of 0..T-1, T does not divide by cp_size, `seq_len`
  // above T.
  static SequenceLayout from_seq_index(const std::vector<int64_t>& seq_index, int64_t cp_size,
                                       int64_t seq_len = -1);

  int64_t cp_size() const { return static_cast<int64_t>(chunks_.size()); }
  int64_t num_positions() const { return static_cast<int64_t>(order_.size()); }  // T
  int64_t local_positions() const { return num_positions() / cp_size(); }        // T_cp
  const std::vector<SequenceSpan>& sequences() const { return sequences_; }

  // [T] position in the padded row of every rank's local positions, rank after rank: gathering in
  // rank order gives the row in this order.
  const std::vector<int64_t>& order() const { return order_; }
  // [T] where in that gathered row each position of the padded row is: the inverse of order().
  std::vector<int64_t> inverse_order() const;

  // [T_cp] each, for the local positions of one rank:
  std::vector<int64_t> indices(int64_t cp_rank) const;  // position in the padded row, also padding
  std::vector<int64_t> token_indices(int64_t cp_rank) const;  // the same, -1 where it is padding
  std::vector<int64_t> positions(int64_t cp_rank) const;      // within its sequence; also padding
  std::vector<int64_t> sequence_ids(int64_t cp_rank) const;   // which sequence; also padding
  // In local order. Zigzag: two chunks per sequence, also where they touch; none of length 0.
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
