// Workload: next-token log-probabilities of sequences cut over cp, with the vocabulary cut over tp.
//
// Sharded: src/logprob/context_logprob.h; each cp rank takes its positions of the logits.
//
// Rows are of two samples of 11 tokens, padded to 12 positions, or of four sequences of 5, 1, 12
// and 2 tokens, packed into one row, each padded to 12 positions and cut after 9 tokens.
#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "logprob/context_logprob.h"
#include "sim/uses/proofs/built_in.h"
#include "sim/uses/proofs/passes.h"
#include "tensor/int64_list.h"

namespace shardproof::sim::proofs {
namespace {

constexpr int64_t kPositions = 12;  // of a sample or packed sequence; works with cp of 1, 2 and 3
constexpr int64_t kSamples = 2;
constexpr int64_t kTokens = 11;               // of each sample
constexpr int64_t kUnpackedLength = 9;        // of a packed sequence's row in the result
constexpr int64_t kPacked[] = {5, 1, 12, 2};  // tokens of the packed sequences
constexpr int64_t kPackedCount = std::size(kPacked);

bool is_packed(const Options& options) { return options["rows"] == "packed"; }
bool is_indexed(const Options& options) { return options["rows"] == "indexed"; }

void check_context(const Options& options) {
  if (!is_indexed(options) || !options["contiguous"]) return;
  throw_bad_input(
      "options rows: indexed and contiguous are set, but the list gives each rank's positions",
      "leave one of them out");
}

std::vector<int64_t> running_sum(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> sums = {0};
  for (const int64_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}
std::vector<int64_t> ends_of_tokens() {
  return running_sum({std::begin(kPacked), std::end(kPacked)});
}
std::vector<int64_t> ends_of_padded() {
  return running_sum(std::vector<int64_t>(kPackedCount, kPositions));
}

WorkloadTensors context_inputs(Draw& draw, const Options& options) {
  check_context(options);
  const int64_t vocab = options["vocab_size"];
  const int64_t samples = is_packed(options) ? 1 : kSamples;
  const int64_t positions = is_packed(options) ? kPositions * kPackedCount : kPositions;
  const at::Tensor logits = draw.normal({samples, positions, vocab}) * 4;
  WorkloadTensors inputs = {
      // Each cp rank gets all positions and takes its own.
      {"logits", logits.to(at::kBFloat16).to(at::kDouble), Layout({Cut::even(2, "tp")}), {"cp"}},
      {"target", draw.integers(vocab, {samples, is_packed(options) ? positions : kTokens})}};
  if (is_indexed(options)) inputs.push_back({"seq_index", draw.normal({kPositions}).argsort()});
  return inputs;
}

// [count]: the logprobs of tokens 1, 2, .. of one sequence from its logits [positions, V].
at::Tensor scored_alone(const at::Tensor& logits, const at::Tensor& target, int64_t count,
                        const Options& options) {
  const at::ScalarType wide = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor all =
      log_softmax_of_rows(logits.to(wide) / options["temperature"].get<double>());
  return all.narrow(0, 0, count).gather(-1, target.narrow(0, 1, count).unsqueeze(-1)).squeeze(-1);
}

WorkloadTensors plain_context(const TensorsByName& full, const Options& options) {
  const at::Tensor logits = full.at("logits"), target = full.at("target");
  std::vector<at::Tensor> rows;
  if (!is_packed(options)) {
    for (int64_t i = 0; i < kSamples; ++i) {
      rows.push_back(scored_alone(logits[i], target[i], kTokens - 1, options));
    }
    return {{"logprobs", at::stack(rows)}};
  }
  for (int64_t i = 0; i < kPackedCount; ++i) {
    const int64_t count = std::min(kPacked[i], kUnpackedLength) - 1;
    const at::Tensor scored =
        scored_alone(logits[0].narrow(0, i * kPositions, kPositions),
                     target[0].narrow(0, i * kPositions, kPositions), count, options);
    rows.push_back(at::constant_pad_nd(scored, {0, kUnpackedLength - 1 - count}));
  }
  return {{"logprobs", at::stack(rows)}};
}

ContextLayout layout_kind(const Options& options) {
  return options["contiguous"] ? ContextLayout::kContiguous : ContextLayout::kZigzag;
}

SequenceLayout positions_of_ranks(const TensorsByName& local, int64_t cp, const Options& options) {
  if (is_packed(options)) {
    return SequenceLayout::packed(ends_of_tokens(), ends_of_padded(), cp, layout_kind(options));
  }
  if (!is_indexed(options)) {
    return SequenceLayout::whole(kTokens, cp, layout_kind(options), kPositions);
  }
  return SequenceLayout::from_seq_index(int64_list(local.at("seq_index")), cp, kTokens);
}

at::Tensor scored_over_cp(const TensorsByName& local, const LogprobAxes& axes,
                          const Options& options) {
  const at::Tensor logits = sequence_shard(
      local.at("logits"), positions_of_ranks(local, axes.cp.size(), options), axes.cp.rank(), 1);
  const at::Tensor target = local.at("target");
  const SequenceGather gather = options["reduce_scatter"]
                                    ? &sequence_gather_with_reduce_scatter_backward
                                    : &sequence_gather_with_slice_backward;
  const LogprobOptions given{.temperature = options["temperature"],
                             .block_rows = options["block_rows"]};
  if (is_indexed(options)) {
    return indexed_next_token_logprobs(logits, target, local.at("seq_index"), axes, gather, given);
  }
  if (!is_packed(options)) {
    return context_next_token_logprobs(logits, target, axes, gather, given, layout_kind(options));
  }
  const auto as_tensor = [](const std::vector<int64_t>& ends) {
    return at::tensor(ends, at::TensorOptions().dtype(at::kLong));
  };
  return packed_next_token_logprobs(logits,
                                    {.target = target,
                                     .cu_seqlens_padded = as_tensor(ends_of_padded()),
                                     .unpacked_seqlen = kUnpackedLength,
                                     .cu_seqlens = as_tensor(ends_of_tokens())},
                                    axes, gather, given, layout_kind(options));
}

WorkloadTensors sharded_context(const TensorsByName& local, MeshComm& comm,
                                const Options& options) {
  Communicator& cp = comm.along("cp");
  const at::Tensor logprobs = scored_over_cp(
      local, {.tp = comm.along("tp"), .cp = cp, .vocab_size = options["vocab_size"]}, options);
  if (!options["reduce_scatter"]) return {{"logprobs", logprobs}};
  const at::Tensor part = at::arange(logprobs.numel(), logprobs.options().dtype(at::kLong))
                              .remainder(cp.size())
                              .eq(cp.rank())
                              .view(logprobs.sizes());
  return {{"logprobs", logprobs * part, Layout(), {"cp"}}};
}

}  // namespace

Workload context_logprob_workload() {
  return {.name = "context_logprob",
          .inputs = context_inputs,
          .plain = plain_context,
          .sharded = sharded_context};
}

}  // namespace shardproof::sim::proofs
