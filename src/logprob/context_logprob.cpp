#include "logprob/context_logprob.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "logprob/vocab_parallel_logprob.h"
#include "sequence/cu_seqlens.h"
#include "tensor/int64_list.h"

namespace shardproof {
namespace {

at::Tensor list_tensor(const std::vector<int64_t>& list, at::Device device) {
  return at::tensor(list, at::TensorOptions().dtype(at::kLong)).to(device);
}

// For each local position, the index in the row of the token that it predicts; -1 where it predicts
// none.
std::vector<int64_t> predicted(const SequenceLayout& layout, int64_t cp_rank) {
  std::vector<int64_t> next;
  for (const SequenceChunk& chunk : layout.chunks(cp_rank)) {
    const SequenceSpan& span = layout.sequences()[static_cast<size_t>(chunk.sequence)];
    for (int64_t i = 0; i < chunk.length; ++i) {
      const int64_t position = chunk.begin + i + 1;
      next.push_back(position < span.length ? span.start + position : -1);
    }
  }
  return next;
}

void check_shapes(const at::Tensor& logits, const at::Tensor& target, int64_t cp_size) {
  SHARDPROOF_ASSERT(logits.dim() == 3 && target.dim() == 2,
                    "logits [B, T_cp, V_tp], target [B, S]");
  const int64_t covered = logits.size(1) * cp_size;
  if (target.size(0) != logits.size(0)) {
    throw_bad_input(
        fmt::format("logits of {} samples, targets of {}", logits.size(0), target.size(0)),
        "give one row of targets per sample");
  }
  if (target.size(1) > covered) {
    throw_bad_input(
        fmt::format("{} targets per sample, the logits of cp={} ranks cover {} positions",
                    target.size(1), cp_size, covered),
        "give the logits of every position, or cut the targets");
  }
}

// This rank's shard [B, T_cp], not gathered, from the padded row `target` [B, T]: at the position
// of token t, the logprob of token t+1 of its sequence. It is exactly 0, with a gradient of exactly
// 0, at each sequence's last token and in padding, whose ids are not read.
at::Tensor local_next_token_logprobs(const at::Tensor& logits, const at::Tensor& target,
                                     const SequenceLayout& layout, const LogprobAxes& axes,
                                     const LogprobOptions& options) {
  SHARDPROOF_ASSERT(layout.cp_size() == axes.cp.size(), "a layout of as many ranks as cp");
  SHARDPROOF_ASSERT(logits.size(1) == layout.local_positions(), "one row of logits per position");
  const std::vector<int64_t> next_index = predicted(layout, axes.cp.rank());
  const at::Tensor next = list_tensor(next_index, target.device());
  const at::Tensor counted = next.ge(0).unsqueeze(0);
  const at::Tensor shifted =
      target.index_select(1, next.clamp_min(0)).masked_fill_(counted.logical_not(), 0);
  const at::Tensor logprobs =
      vocab_parallel_logprob(logits, shifted, axes.tp, axes.vocab_size, options);
  return at::where(counted.to(logprobs.device()), logprobs, at::zeros_like(logprobs));
}

// The common end for all layouts: takes shards and returns the first S - 1 positions.
at::Tensor scored_in_order(const at::Tensor& logits, const at::Tensor& target,
                           const SequenceLayout& layout, const LogprobAxes& axes,
                           SequenceGather gather, const LogprobOptions& options) {
  const at::Tensor padded = pad_sequences(target, layout, 1);
  const at::Tensor local = local_next_token_logprobs(logits, padded, layout, axes, options);
  return gather(local, layout, axes.cp, 1, options.label + " gather")
      .narrow(1, 0, std::max<int64_t>(target.size(1) - 1, 0));
}

// [N, width] from a row [T]: row i holds `length - 1` entries from the start of sequence i, then 0.
at::Tensor unpack_scored(const at::Tensor& row, const SequenceLayout& layout, int64_t width) {
  const auto count = static_cast<int64_t>(layout.sequences().size());
  std::vector<int64_t> source(static_cast<size_t>(count * width), row.size(0));
  for (int64_t i = 0; i < count; ++i) {
    const SequenceSpan& span = layout.sequences()[static_cast<size_t>(i)];
    const int64_t scored = std::min(std::max<int64_t>(span.length - 1, 0), width);
    for (int64_t t = 0; t < scored; ++t)
      source[static_cast<size_t>(i * width + t)] = span.start + t;
  }
  return at::cat({row, at::zeros({1}, row.options())})
      .index_select(0, list_tensor(source, row.device()))
      .view({count, width});
}

}  // namespace

at::Tensor context_next_token_logprobs(const at::Tensor& logits, const at::Tensor& target,
                                       const LogprobAxes& axes, SequenceGather gather,
                                       const LogprobOptions& options, ContextLayout kind) {
  check_shapes(logits, target, axes.cp.size());
  const SequenceLayout layout =
      SequenceLayout::whole(target.size(1), axes.cp.size(), kind, logits.size(1) * axes.cp.size());
  return scored_in_order(logits, target, layout, axes, gather, options);
}

at::Tensor indexed_next_token_logprobs(const at::Tensor& logits, const at::Tensor& target,
                                       const at::Tensor& seq_index, const LogprobAxes& axes,
                                       SequenceGather gather, const LogprobOptions& options) {
  check_shapes(logits, target, axes.cp.size());
  if (seq_index.dim() != 1 || seq_index.size(0) != logits.size(1) * axes.cp.size()) {
    throw_bad_input(
        fmt::format("seq_index of {} entries, the logits of cp={} ranks cover {} positions",
                    seq_index.numel(), axes.cp.size(), logits.size(1) * axes.cp.size()),
        "give one entry per position, rank after rank");
  }
  const SequenceLayout layout =
      SequenceLayout::from_seq_index(int64_list(seq_index), axes.cp.size(), target.size(1));
  return scored_in_order(logits, target, layout, axes, gather, options);
}

at::Tensor packed_next_token_logprobs(const at::Tensor& logits, const PackedTargets& packed,
                                      const LogprobAxes& axes, SequenceGather gather,
                                      const LogprobOptions& options, ContextLayout kind) {
  const at::Tensor target = packed.target.reshape({1, -1});
  if (packed.unpacked_seqlen < 1) {
    throw_bad_input(fmt::format("an unpacked length of {}", packed.unpacked_seqlen),
                    "give 1 or more");
  }
  const std::vector<int64_t> padded = read_cu_seqlens(packed.cu_seqlens_padded, target.size(1));
  const std::vector<int64_t> real =
      packed.cu_seqlens.defined() ? read_cu_seqlens(packed.cu_seqlens) : padded;
  SHARDPROOF_ASSERT(logits.dim() == 3 && logits.size(0) == 1, "logits [1, T_cp, V_tp]");
  if (logits.size(1) * axes.cp.size() != target.size(1)) {
    throw_bad_input(fmt::format("{} packed targets, the logits of cp={} ranks cover {} positions",
                                target.size(1), axes.cp.size(), logits.size(1) * axes.cp.size()),
                    "give the logits of every position of the pack");
  }
  const SequenceLayout layout = SequenceLayout::packed(real, padded, axes.cp.size(), kind);
  const at::Tensor local = local_next_token_logprobs(logits, target, layout, axes, options);
  const at::Tensor row = gather(local, layout, axes.cp, 1, options.label + " gather").squeeze(0);
  return unpack_scored(row, layout, packed.unpacked_seqlen - 1);
}

}  // namespace shardproof
