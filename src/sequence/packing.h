// Packs sequences of a padded batch one after the other into one row, and unpacks them.
//
//   padded  a b c .      packed, each padded to a multiple of 4, the row to a multiple of 8
//           d . . .      a b c * | d * * *            positions 0 1 2 3 | 0 1 2 3
//
// Legend: B samples, S positions of the padded batch, N sequences of the pack, T positions of the
// packed row including padding; `..` stands for further dims.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sequence/sequence_layout.h"

namespace shardproof {

// The contents of a packed row.
struct Pack {
  std::vector<int64_t> samples;            // [N] rows of the padded batch, in the row's order
  std::vector<int64_t> cu_seqlens;         // [N+1] real lengths
  std::vector<int64_t> cu_seqlens_padded;  // [N+1] positions in the row; the last is T
  int64_t num_sequences() const { return static_cast<int64_t>(samples.size()); }
  int64_t num_positions() const { return cu_seqlens_padded.back(); }  // T
  SequenceLayout layout(int64_t cp_size, ContextLayout kind) const;
};

// Packs `samples`; `lengths` are those of all B samples. Each sequence is padded to a multiple of
// `sequence_multiple`, and the last one further until the row is a multiple of `row_multiple` and
// at least `row_length` long. `row_multiple` must be a multiple of `sequence_multiple` (asserted).
// Throws Error(kBadInput) without samples, and for a negative length.
Pack make_pack(const std::vector<int64_t>& samples, const std::vector<int64_t>& lengths,
               int64_t sequence_multiple = 1, int64_t row_multiple = 1, int64_t row_length = 0);

// [B, S, ..] -> [1, T, ..]: the tokens of the pack's samples; padding holds `value`. Gradients flow
// back to the tokens. Throws Error(kBadInput) when a sample of the pack is longer than S.
at::Tensor pack(const at::Tensor& padded, const Pack& plan, double value = 0);

// [1, T, ..] -> [N, seq_len, ..]: row i is sample plan.samples[i], with `value` after its tokens.
// Tokens from position seq_len on are cut and get no gradient.
at::Tensor unpack(const at::Tensor& row, const Pack& plan, int64_t seq_len, double value = 0);

// [1, T] int64: 0, 1, ... from the start of each sequence through its padding.
at::Tensor packed_positions(const Pack& plan);
// [1, T] int64: the index of the sequence in the pack; padding belongs to its sequence.
at::Tensor packed_sequence_ids(const Pack& plan);
// [1, T] int64: the position in the row of the next token of the same sequence, -1 for a last token
// and for padding. Shift targets by it before any rank takes its part.
at::Tensor packed_next(const Pack& plan);

}  // namespace shardproof
