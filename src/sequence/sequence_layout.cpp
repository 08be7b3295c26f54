#include "sequence/sequence_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "mesh/layout.h"
#include "sequence/cu_seqlens.h"

namespace shardproof {
namespace {

void check_cp_size(int64_t cp_size) {
  if (cp_size >= 1) return;
  throw_bad_input(fmt::format("a context-parallel axis of {} ranks", cp_size), "give 1 or more");
}

void check_divides(int64_t length, int64_t multiple, ContextLayout kind, int64_t cp_size) {
  if (length % multiple == 0) return;
  const std::string parts = kind == ContextLayout::kZigzag
                                ? fmt::format("2*cp={} zigzag chunks", multiple)
                                : fmt::format("cp={} {} parts", multiple, kind);
  throw_refused(fmt::format("seq_len={} does not split into {}", length, parts),
                fmt::format("pad it to {}, or set cp=1", round_up(length, multiple)));
}

std::vector<SequenceSpan> spans(const std::vector<int64_t>& cu,
                                const std::vector<int64_t>& cu_padded) {
  check_cu_seqlens(cu, "cu_seqlens");
  check_cu_seqlens(cu_padded, "cu_seqlens_padded");
  if (cu.size() != cu_padded.size()) {
    throw_bad_input(
        fmt::format("cu_seqlens has {} entries, cu_seqlens_padded {}", cu.size(), cu_padded.size()),
        "give one entry per sequence and one more in both");
  }
  std::vector<SequenceSpan> out;
  for (size_t i = 0; i + 1 < cu.size(); ++i) {
    const SequenceSpan span{.start = cu_padded[i],
                            .length = cu[i + 1] - cu[i],
                            .padded_length = cu_padded[i + 1] - cu_padded[i]};
    if (span.length > span.padded_length) {
      throw_bad_input(fmt::format("sequence {} has {} tokens and a padded length of {}", i,
                                  span.length, span.padded_length),
                      "let no entry of cu_seqlens_padded leave less room than cu_seqlens needs");
    }
    out.push_back(span);
  }
  return out;
}

}  // namespace

int64_t sequence_multiple(ContextLayout kind, int64_t cp_size) {
  if (cp_size == 1 || kind == ContextLayout::kRow) return 1;
  return kind == ContextLayout::kZigzag ? 2 * cp_size : cp_size;
}

SequenceLayout::SequenceLayout(std::vector<SequenceSpan> sequences, int64_t cp_size)
    : sequences_(std::move(sequences)), chunks_(static_cast<size_t>(cp_size)) {}

SequenceLayout SequenceLayout::whole(int64_t seq_len, int64_t cp_size, ContextLayout kind,
                                     int64_t padded_len) {
  check_cp_size(cp_size);
  if (seq_len < 0)
    throw_bad_input(fmt::format("a sequence of {} tokens", seq_len), "give 0 or more");
  const int64_t multiple = kind == ContextLayout::kRow ? cp_size : sequence_multiple(kind, cp_size);
  if (padded_len == -1) padded_len = round_up(seq_len, multiple);
  return packed({0, seq_len}, {0, padded_len}, cp_size, kind);
}

SequenceLayout SequenceLayout::packed(const std::vector<int64_t>& cu_seqlens,
                                      const std::vector<int64_t>& cu_seqlens_padded,
                                      int64_t cp_size, ContextLayout kind) {
  check_cp_size(cp_size);
  SequenceLayout layout(spans(cu_seqlens, cu_seqlens_padded), cp_size);
  if (kind == ContextLayout::kRow) {
    check_divides(cu_seqlens_padded.back(), cp_size, kind, cp_size);
    layout.cut_row();
  } else {
    layout.cut_each_sequence(kind);
  }
  layout.order_from_chunks();
  return layout;
}

SequenceLayout SequenceLayout::from_seq_index(const std::vector<int64_t>& seq_index,
                                              int64_t cp_size, int64_t seq_len) {
  check_cp_size(cp_size);
  const auto total = static_cast<int64_t>(seq_index.size());
  if (total % cp_size != 0) {
    throw_bad_input(
        fmt::format("seq_index has {} entries, which {} ranks cannot share", total, cp_size),
        fmt::format("pad the sequence to {}", round_up(total, cp_size)));
  }
  if (seq_len > total) {
    throw_bad_input(
        fmt::format("seq_index covers {} positions of a sequence of {} tokens", total, seq_len),
        "give every position once");
  }
  std::vector<bool> seen(seq_index.size(), false);
  for (const int64_t index : seq_index) {
    if (index < 0 || index >= total || seen[static_cast<size_t>(index)]) {
      throw_bad_input(fmt::format("seq_index names position {} of {} {}", index, total,
                                  index < 0 || index >= total ? "which is not there" : "twice"),
                      "give every position once");
    }
    seen[static_cast<size_t>(index)] = true;
  }
  const int64_t tokens = seq_len < 0 ? total : seq_len;
  SequenceLayout layout({{.start = 0, .length = tokens, .padded_length = total}}, cp_size);
  const int64_t share = total / cp_size;
  for (int64_t at = 0; at < total;) {
    int64_t end = at + 1;
    while (end % share != 0 &&
           seq_index[static_cast<size_t>(end)] == seq_index[static_cast<size_t>(end - 1)] + 1) {
      ++end;
    }
    layout.add_chunk(at / share, 0, seq_index[static_cast<size_t>(at)], end - at);
    at = end;
  }
  layout.order_from_chunks();
  return layout;
}

void SequenceLayout::add_chunk(int64_t cp_rank, int64_t sequence, int64_t begin, int64_t length) {
  if (length == 0) return;
  std::vector<SequenceChunk>& own = chunks_[static_cast<size_t>(cp_rank)];
  const int64_t real = sequences_[static_cast<size_t>(sequence)].length - begin;
  own.push_back({.sequence = sequence,
                 .begin = begin,
                 .length = length,
                 .real_length = std::clamp<int64_t>(real, 0, length),
                 .local_begin = own.empty() ? 0 : own.back().local_begin + own.back().length});
}

void SequenceLayout::cut_each_sequence(ContextLayout kind) {
  const int64_t multiple = sequence_multiple(kind, cp_size());
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const int64_t length = sequences_[i].padded_length;
    check_divides(length, multiple, kind, cp_size());
    const int64_t chunk = length / multiple;
    const auto sequence = static_cast<int64_t>(i);
    for (int64_t rank = 0; rank < cp_size(); ++rank) {
      if (multiple == cp_size()) {
        add_chunk(rank, sequence, rank * chunk, chunk);
      } else {
        for (const int64_t part : zigzag_chunks(rank, cp_size())) {
          add_chunk(rank, sequence, part * chunk, chunk);
        }
      }
    }
  }
}

void SequenceLayout::cut_row() {
  const int64_t total =
      sequences_.empty() ? 0 : sequences_.back().start + sequences_.back().padded_length;
  const int64_t share = total / cp_size();
  for (int64_t rank = 0; rank < cp_size(); ++rank) {
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const SequenceSpan& span = sequences_[i];
      const int64_t begin = std::max(span.start, rank * share);
      const int64_t end = std::min(span.start + span.padded_length, (rank + 1) * share);
      if (begin < end) add_chunk(rank, static_cast<int64_t>(i), begin - span.start, end - begin);
    }
  }
}

void SequenceLayout::order_from_chunks() {
  for (int64_t rank = 0; rank < cp_size(); ++rank) {
    const std::vector<int64_t> own = indices(rank);
    order_.insert(order_.end(), own.begin(), own.end());
  }
}

std::vector<int64_t> SequenceLayout::inverse_order() const {
  std::vector<int64_t> inverse(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    inverse[static_cast<size_t>(order_[i])] = static_cast<int64_t>(i);
  }
  return inverse;
}

const std::vector<SequenceChunk>& SequenceLayout::chunks(int64_t cp_rank) const {
  SHARDPROOF_ASSERT(cp_rank >= 0 && cp_rank < cp_size(), "a rank of the context-parallel axis");
  return chunks_[static_cast<size_t>(cp_rank)];
}

std::vector<int64_t> SequenceLayout::indices(int64_t cp_rank) const {
  std::vector<int64_t> out;
  for (const SequenceChunk& chunk : chunks(cp_rank)) {
    const int64_t first = sequences_[static_cast<size_t>(chunk.sequence)].start + chunk.begin;
    for (int64_t i = 0; i < chunk.length; ++i) out.push_back(first + i);
  }
  return out;
}

std::vector<int64_t> SequenceLayout::token_indices(int64_t cp_rank) const {
  std::vector<int64_t> out = indices(cp_rank);
  for (const SequenceChunk& chunk : chunks(cp_rank)) {
    const auto begin = out.begin() + chunk.local_begin;
    std::fill(begin + chunk.real_length, begin + chunk.length, -1);
  }
  return out;
}

}  // namespace shardproof
