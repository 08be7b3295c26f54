// The built-in workloads and the rows of their options, without the functions that compute.
#include "sim/uses/proofs/built_in_rows.h"

#include "base/families.h"

namespace shardproof::sim::proofs {
namespace {

// Sizes of inputs that may have no elements, of those that have some, and numbers of ranks.
constexpr Range kSizes = {0, kMaxSize}, kPositiveSizes = {1, kMaxSize};
constexpr Range kRankCounts = {1, kMaxRanks};
constexpr Range kConstants = {-kMaxConstant, kMaxConstant};

// Options of several workloads.
WorkloadOption samples_option() {
  return {"samples", 4, "Samples, cut over dp", kSizes, CutOver{"dp"}};
}
WorkloadOption rows_option() { return {"rows", 6, "Rows, cut over dp", kSizes, CutOver{"dp"}}; }
WorkloadOption tokens_option() {
  return {"tokens", 12, "Tokens of each sample", kSizes, CutOver{"tp", "sequence_parallel"}};
}
WorkloadOption vocabulary_option() {
  return {"vocab_size", 36, "Tokens, cut over tp", kPositiveSizes, CutOver{"tp"}};
}
// At higher ones, and at a smaller spread, a KL divergence is smaller than the rounding of its
// terms.
WorkloadOption temperature_option() {
  return {"temperature", 1.0, "Divisor of the logits", Range{1e-3, 1e3}};
}
WorkloadOption block_rows_option() {
  return {"block_rows", 0, "Rows that are computed together; 0: all", kSizes};
}
WorkloadOption drop_option() {
  return {"p", 0.3, "Probability that a number is dropped", Range{0, 1}};
}
WorkloadOption tp_ranks_option() {
  return {"tp_ranks", 1, "Ranks of tp", kRankCounts, CountsRanks{"tp"}};
}
WorkloadOption dp_ranks_option() {
  return {"dp_ranks", 1, "Ranks of dp", kRankCounts, CountsRanks{"dp"}};
}
WorkloadOption frozen_option() { return {"frozen", false, "The weight has no gradient"}; }
WorkloadOption sequence_parallel_option() {
  return {"sequence_parallel", false, "Tokens outside of the layer are cut over tp"};
}

std::vector<KnownWorkload> with_option_of_all(std::vector<KnownWorkload> rows) {
  for (KnownWorkload& row : rows) row.options.push_back(strided_inputs_option());
  return rows;
}

// Every family without experts, which no option of refit gives.
std::vector<std::string> dense_families() {
  std::vector<std::string> names;
  for (const FamilyTraits& family : all_families()) {
    if (!family.has_experts()) names.emplace_back(family.name);
  }
  return names;
}

}  // namespace

const std::vector<KnownWorkload>& built_in_rows() {
  static const std::vector<KnownWorkload> rows = with_option_of_all({
      {.name = "broadcast_data",
       .about = "a batch from the first rank of each tp or dp group to all its ranks",
       .options = {{"samples", 4, "Samples", kSizes, CutOver{"dp", "axis", "tp"},
                    CutOver{"tp", "axis", "dp"}},
                   {"tokens", 5, "Tokens of each sample", kSizes},
                   {"axis", "tp", "Axis of the groups; the samples are cut over the other",
                    Choices{{"tp", "dp"}}},
                   {"floating", false, "The batch holds float64 instead of integers"},
                   {"missing", "", "The caller's mistake: a key that no batch has",
                    NotDrawn{"each group refuses it alone, after a call"}},
                   {"other_dtype", false, "The caller's mistake: a tensor of another type",
                    NotDrawn{"each group refuses it alone, after a call"}}}},
      {.name = "checkpointed_block",
       .about = "a tensor-parallel block with dropout, recomputed in the backward",
       .options = {samples_option(),
                   {"tokens", 5, "Tokens of each sample", kSizes},
                   {"width", 6, "Features of x and y", kSizes},
                   {"hidden", 12, "Features of h, cut over tp", kSizes, CutOver{"tp"}},
                   drop_option(),
                   tp_ranks_option(),
                   dp_ranks_option(),
                   {"block", "plain", "How h and y are saved; spread: the input kept over tp",
                    Choices{{"plain", "checkpoint", "spread"}}},
                   {"norm", "plain", "How z is saved",
                    Choices{{"plain", "checkpoint", "without_output"}}},
                   {"forked", false,
                    "The block runs in a fork of the model parallel stream that ends before the "
                    "backward, as Megatron-LM's layers with sequence parallelism do"},
                   {"shared", false,
                    "z is y, so that an output that is not saved shares memory with an input"},
                   {"replays", true, "false: the recomputation draws new masks, as with a bug",
                    NotDrawn{"false is wrong on purpose"}}}},
      {.name = "column_parallel_linear",
       .about = "y = x W^T + b, rows of W cut over tp, samples of x over dp",
       .options =
           {samples_option(),
            tokens_option(),
            {"in_features", 5, "Features of x", kPositiveSizes},
            {"out_features", 12, "Features of y, cut over tp", kPositiveSizes},
            {"bias", true, "y has a bias"},
            {"gather_output", false, "Each rank gets the whole of y"},
            {"runtime_gather", "default", "Overrides gather_output before the call",
             Choices{{"default", "yes", "no"}}},
            {"fused", "none", "y in blocks: gate_up, two equal ones; qkv, a half and two quarters",
             Choices{{"none", "gate_up", "qkv"}}},
            frozen_option(),
            sequence_parallel_option(),
            {"disable_grad_reduce", false, "The layer's caller sums the gradient of x"},
            {"expert", false, "The caller gathers x, as a dispatcher of tokens does"},
            {"gather_buffer", false, "The whole of x lies in a buffer that is reused"},
            {"async_grad", true, "The gradient of x is reduced while that of W is computed"}}},
      {.name = "context_logprob",
       .about = "logprobs of next tokens, sequences cut over cp, vocabulary over tp",
       .options = {{"rows", "whole",
                    "Samples; the same, with a shuffled list of each rank's positions; or packed",
                    Choices{{"whole", "indexed", "packed"}}},
                   {"contiguous", false, "Each rank's positions are contiguous, not in zigzag",
                    NotBeside{true, "rows", "indexed"}},
                   {"reduce_scatter", false,
                    "Each cp rank goes on with a part of the outputs, not with all of them"},
                   vocabulary_option(),
                   temperature_option(),
                   block_rows_option()}},
      {.name = "dropout_regions",
       .about = "dropout inside and outside of tensor-parallel regions, and its draws",
       .options = {samples_option(),
                   tokens_option(),
                   {"width", 24, "Features, cut over tp", kSizes, CutOver{"tp"}},
                   drop_option(),
                   {"sequence_parallel", false, "Tokens are cut over tp, not held equally"},
                   tp_ranks_option(),
                   dp_ranks_option(),
                   {"expert_parallel_ranks", 1,
                    "Expert ranks, whose streams have other seeds than those of tp", kRankCounts},
                   {"wrong_stream", "",
                    "A place that draws from the stream of the other kind, as with a bug",
                    Choices{{"", "residual", "features", "tokens"}},
                    NotDrawn{"others than none are wrong on purpose"}},
                   {"stray_draw", false,
                    "Draws from the process's default generator in a fork: a warning"},
                   {"rewound", false,
                    "Sets the streams back after tokens, draws residual again, and the layer "
                    "continues from there"},
                   {"inference", false, "The tracker is one of inference, which draws nothing",
                    NotDrawn{"every group refuses it, as it draws numbers"}},
                   {"extra_seed", -1, "Adds a stream with this seed; -1: none"},
                   {"fork", "", "The layer runs in a fork of this name; empty: in none"}}},
      {.name = "fused_logprob",
       .about = "logprob of a target from each hidden state, output layer cut over tp",
       .options = {rows_option(),
                   {"hidden_size", 5, "Features of a hidden state", kPositiveSizes},
                   vocabulary_option(),
                   {"bias", true, "The output layer has a bias"},
                   temperature_option(),
                   block_rows_option()}},
      {.name = "mapping",
       .about = "one differentiable collective over tp, forward and its conjugate backward",
       .options =
           {{"mapping", "copy_with_all_reduce_backward",
             "A function of collective/mappings.h or all_to_all.h",
             Choices{{"copy_with_all_reduce_backward", "all_reduce_with_identity_backward",
                      "all_gather_with_reduce_scatter_backward", "all_gather_with_slice_backward",
                      "reduce_scatter_with_all_gather_backward", "slice_with_all_gather_backward",
                      "all_to_all_with_all_to_all_backward", "sequence_to_hidden",
                      "hidden_to_sequence"}}},
            {"ranks", 2, "Ranks of tp", kRankCounts, CountsRanks{"tp"}},
            {"shape", {12, 24}, "Shape of the tensor", kSizes},
            {"dim", 0, "The dim that is cut, where the mapping takes one"},
            {"uneven", false,
             "Parts by torch.chunk's rule, which each rank of an all_to_all shifts"},
            {"elsewhere", false,
             "The output's gradient also flows elsewhere, and the input is read again "
             "(x_after), so that neither may be overwritten"}}},
      {.name = "refit",
       .about = "a sharded trainer's weights, sent to inference ranks that cut them differently",
       .options = {{"trainer_dp", 2, "Ranks of dp that train", kRankCounts},
                   {"trainer_cp", 1, "Ranks of cp that train", kRankCounts},
                   {"trainer_tp", 2, "Ranks of tp that train", kRankCounts},
                   {"data_parallel", "fsdp", "How the trainer holds weights; hybrid: two copies",
                    Choices{{"replicate", "fsdp", "hybrid"}}},
                   {"precision", "float64", "Precision of the trainer"},
                   {"dtype", "float64", "Precision of the receivers' weights"},
                   {"budget_bytes", 4096, "Most bytes of full tensors on rank 0",
                    Range{1, WorkloadOption::kMostInteger}},
                   {"path", "broadcast", "How weights go to the receivers",
                    Choices{{"broadcast", "shared_memory"}}},
                   {"replicas", 1, "Copies of the receivers, each of tp ranks", kRankCounts},
                   {"kv_heads", 6, "Key and value heads of the model", kPositiveSizes},
                   {"tied", false, "Input and output embedding are one weight"},
                   {"biases", true, "The model's matrices have biases"},
                   {"family", "llama", "Family of the model", Choices{dense_families()}}}},
      {.name = "row_parallel_linear",
       .about = "y = x W^T + b, columns of W cut over tp, samples of x over dp",
       .options = {samples_option(),
                   tokens_option(),
                   {"in_features", 24, "Features of x, cut over tp", kPositiveSizes, CutOver{"tp"}},
                   {"out_features", 5, "Features of y", kPositiveSizes},
                   {"bias", true, "y has a bias", NotBeside{true, "expert"}},
                   {"input_is_parallel", true, "Each rank has its part of x, not the whole"},
                   {"stride", 1, "Equal blocks of columns, each cut over tp", kPositiveSizes},
                   frozen_option(),
                   sequence_parallel_option(),
                   {"expert", false,
                    "The caller sums y, as a dispatcher of tokens does, and adds the bias"}}},
      {.name = "stream_init",
       .about = "the first values of a weight, each rank's part from a separate stream",
       .options = {{"ranks", 1, "Ranks for which one device draws; those of the axis", kRankCounts,
                    CountsRanks{"tp", "axis"}},
                   {"axis", "tp", "Whose ranks hold the parts", Choices{{"tp", "cp", "ulysses"}}},
                   {"expert", false, "Draws from the stream of experts"},
                   {"stream", "", "A stream's name, as with a bug; empty: the right one",
                    NotDrawn{"others than none are wrong on purpose"}}}},
      {.name = "ulysses_inputs",
       .about = "ids padded and sliced over ulysses, the model's output gathered and unpadded",
       .options = {{"samples", 2, "Samples", kSizes},
                   {"tokens", 7, "Tokens of each sample: any number", kSizes},
                   {"vocab_size", 11, "Rows of the table", kPositiveSizes},
                   {"hidden_size", 3, "Features of each row", kSizes}}},
      {.name = "vocab_parallel_cross_entropy",
       .about = "cross entropy of each token with label smoothing, vocabulary cut over tp",
       .options = {samples_option(),
                   {"tokens", 5, "Tokens of each sample", kSizes},
                   {"vocab_size", 24, "Tokens of the vocabulary, cut over tp", kPositiveSizes,
                    CutOver{"tp", "padded_vocab", 0}},
                   {"padded_vocab", 0, "Columns of the padded logits; 0: not padded", kSizes},
                   {"label_smoothing", 0.1, "Part of the target that all tokens share",
                    Range{0, 0.999999}},
                   {"gap", 0.0, "Between the largest logit of a row and the others"},
                   {"strided", false, "The logits lie transposed in memory"},
                   {"overwrite_logits", false, "The loss may write into the logits"},
                   {"read_after", false, "Reads the logits after the loss: did they change"}}},
      {.name = "vocab_parallel_logprob",
       .about = "logprob of a target, entropy and KL of each row, vocabulary cut over tp",
       .options = {rows_option(),
                   vocabulary_option(),
                   {"spread", 4.0, "Standard deviation of the logits", Range{0.01, kMaxConstant}},
                   temperature_option(),
                   block_rows_option(),
                   {"ruled_out_every", 0,
                    "3: every third logit is -infinity, shifted by row; 0: none", kSizes}}},
  });
  return rows;
}

}  // namespace shardproof::sim::proofs
