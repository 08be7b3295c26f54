#include "logprob/vocab_parallel_logprob.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "mesh/layout.h"

namespace shardproof {
namespace {

// What one call works with.
struct Vocabulary {
  VocabRange range;
  Communicator* tp;  // null: this rank holds every column
  std::string label;
};

at::Tensor reduce(const at::Tensor& tensor, ReduceOp op, const Vocabulary& vocabulary,
                  const char* what) {
  if (vocabulary.tp == nullptr) return tensor;
  return vocabulary.tp->all_reduce(tensor, op, vocabulary.label + what);
}

struct Softmax {
  at::Tensor logprob;       // [..]
  at::Tensor softmax;       // [.., counted], wider type
  at::Tensor owned;         // [..] bool: the target is one of this rank's columns
  at::Tensor local_target;  // [..] int64 column of the target, 0 where it is not owned
};

at::Tensor largest_column(const at::Tensor& columns, at::IntArrayRef shape) {
  if (columns.size(-1) > 0) return columns.amax(-1);
  return at::full(shape, -std::numeric_limits<double>::infinity(), columns.options());
}

at::Tensor pick(const at::Tensor& columns, const at::Tensor& local_target,
                const at::Tensor& owned) {
  if (columns.size(-1) == 0) return at::zeros(owned.sizes(), columns.options());
  const at::Tensor picked = columns.gather(-1, local_target.unsqueeze(-1)).squeeze(-1);
  return at::where(owned, picked, at::zeros_like(picked));
}

Softmax distributed_softmax(const at::Tensor& logits, const at::Tensor& target,
                            const Vocabulary& vocabulary) {
  const VocabRange& range = vocabulary.range;
  const at::ScalarType wide = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor columns = logits.narrow(-1, 0, range.counted).to(wide);
  Softmax out;
  out.owned = (target >= range.start).logical_and(target < range.start + range.counted);
  out.local_target = at::where(out.owned, target - range.start, at::zeros_like(target));

  const at::Tensor max =
      reduce(largest_column(columns, target.sizes()), ReduceOp::kMax, vocabulary, " max");
  at::Tensor shifted = columns - max.unsqueeze(-1);
  const at::Tensor own_picked = pick(shifted, out.local_target, out.owned);
  out.softmax = shifted.exp_();
  const at::Tensor sum = reduce(out.softmax.sum(-1), ReduceOp::kSum, vocabulary, " sum");
  const at::Tensor picked = reduce(own_picked, ReduceOp::kSum, vocabulary, " picked");
  out.logprob = picked - sum.log();
  out.softmax.div_(sum.unsqueeze(-1));
  return out;
}

// d logprob / d logit[v] = (v is the target) - softmax[v]. No one-hot tensor: one product and one
// scatter of the incoming gradient to the columns that are targets.
at::Tensor logits_gradient(const at::Tensor& softmax, const at::Tensor& local_target,
                           const at::Tensor& owned, const at::Tensor& grad, int64_t columns) {
  at::Tensor grad_columns = softmax * grad.neg().unsqueeze(-1);
  if (softmax.size(-1) > 0) {
    const at::Tensor at_target = at::where(owned, grad, at::zeros_like(grad));
    grad_columns.scatter_add_(-1, local_target.unsqueeze(-1), at_target.unsqueeze(-1));
  }
  const int64_t padding = columns - softmax.size(-1);
  return padding == 0 ? grad_columns : at::constant_pad_nd(grad_columns, {0, padding}, 0);
}

struct LogprobFunction : torch::autograd::Function<LogprobFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& target, const Vocabulary& vocabulary) {
    const Softmax result = distributed_softmax(logits, target, vocabulary);
    ctx->save_for_backward({result.softmax, result.local_target, result.owned});
    ctx->saved_data["columns"] = logits.size(-1);
    ctx->saved_data["dtype"] = static_cast<int64_t>(logits.scalar_type());
    return result.logprob;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "the logprob has no second derivative");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor grad_logits =
        logits_gradient(saved[0], saved[1], saved[2], grads[0], ctx->saved_data["columns"].toInt());
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    return {grad_logits.to(dtype), at::Tensor(), at::Tensor()};
  }
};

void check_target(const at::Tensor& target, int64_t vocab_size) {
  if (target.numel() == 0) return;
  const int64_t smallest = target.min().item<int64_t>();
  const int64_t largest = target.max().item<int64_t>();
  if (smallest >= 0 && largest < vocab_size) return;
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("target token {} is outside the vocabulary of {} tokens",
                                   smallest < 0 ? smallest : largest, vocab_size),
               .fix = fmt::format("give ids from 0 to {}; mask positions in the loss, not by an id",
                                  vocab_size - 1)});
}

}  // namespace

VocabRange vocab_range(int64_t vocab_size, int64_t tp_size, int64_t tp_rank) {
  const int64_t columns = round_up(vocab_size, tp_size) / tp_size;
  const int64_t start = tp_rank * columns;
  return {.start = start,
          .columns = columns,
          .counted = std::clamp<int64_t>(vocab_size - start, 0, columns)};
}

at::Tensor vocab_parallel_logprob(const at::Tensor& logits, const at::Tensor& target,
                                  Communicator& tp, int64_t vocab_size,
                                  const LogprobOptions& options) {
  SHARDPROOF_ASSERT(
      logits.sizes().slice(0, static_cast<size_t>(logits.dim()) - 1) == target.sizes(),
      "one target per row of logits");
  check_target(target, vocab_size);
  const bool whole = logits.size(-1) >= vocab_size;
  const Vocabulary vocabulary{.range = whole ? vocab_range(vocab_size, 1, 0)
                                             : vocab_range(vocab_size, tp.size(), tp.rank()),
                              .tp = whole ? nullptr : &tp,
                              .label = options.label};
  SHARDPROOF_ASSERT(logits.size(-1) == vocabulary.range.columns,
                    fmt::format("{} columns of logits, {} are this rank's share of {} tokens",
                                logits.size(-1), vocabulary.range.columns, vocab_size));
  if (options.inference_only.value_or(!at::GradMode::is_enabled())) {
    const at::NoGradGuard no_grad;
    return distributed_softmax(logits, target, vocabulary).logprob;
  }
  return LogprobFunction::apply(logits, target, vocabulary);
}

at::Tensor next_token_logprobs(const at::Tensor& logits, const at::Tensor& input_ids,
                               Communicator& tp, int64_t vocab_size,
                               const LogprobOptions& options) {
  SHARDPROOF_ASSERT(logits.dim() == 3 && input_ids.dim() == 2, "logits [b, s, V_tp], ids [b, s]");
  // The last position's target is one that is there (the first token): its result is dropped.
  const at::Tensor target = input_ids.roll(-1, 1);
  const at::Tensor shifted = vocab_parallel_logprob(logits, target, tp, vocab_size, options);
  const int64_t seq_len = input_ids.size(1);
  const at::Tensor first =
      at::zeros({input_ids.size(0), std::min<int64_t>(seq_len, 1)}, shifted.options());
  return at::cat({first, shifted.narrow(1, 0, std::max<int64_t>(seq_len - 1, 0))}, 1);
}

}  // namespace shardproof
