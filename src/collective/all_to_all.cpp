#include "collective/all_to_all.h"

#include <ATen/ATen.h>

#include <string>

#include "base/error.h"
#include "collective/equal_parts.h"
#include "collective/kept_communicator.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

struct AllToAllFunction : Function<AllToAllFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& input, Communicator* axis,
                            const std::string& label, const std::vector<int64_t>& input_sizes,
                            const std::vector<int64_t>& output_sizes) {
    ctx->saved_data["axis"] = keep_communicator(*axis);
    ctx->saved_data["label"] = label;
    ctx->saved_data["input_sizes"] = input_sizes;
    ctx->saved_data["output_sizes"] = output_sizes;
    return axis->all_to_all(input, label + " forward", input_sizes, output_sizes);
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "an all-to-all has no second derivative");
    auto& saved = ctx->saved_data;
    Communicator& axis = kept_communicator(saved["axis"]);
    const at::Tensor grad =
        axis.all_to_all(grads[0], saved["label"].toStringRef() + " backward",
                        saved["output_sizes"].toIntVector(), saved["input_sizes"].toIntVector());
    return {grad, {}, {}, {}, {}};
  }
};

at::Tensor rows_of(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

std::vector<int64_t> from_each(const Communicator& axis, int64_t rows) {
  return std::vector<int64_t>(static_cast<size_t>(axis.size()), rows);
}

void check_one_per_rank(const std::vector<int64_t>& tokens, const Communicator& axis) {
  SHARDPROOF_ASSERT(tokens.empty() || static_cast<int64_t>(tokens.size()) == axis.size(),
                    "one number of tokens per rank");
}

}  // namespace

at::Tensor all_to_all_with_all_to_all_backward(const at::Tensor& input, Communicator& axis,
                                               std::string_view label,
                                               const std::vector<int64_t>& input_sizes,
                                               const std::vector<int64_t>& output_sizes) {
  if (axis.size() == 1) return input;
  return AllToAllFunction::apply(input, &axis, std::string(label), input_sizes, output_sizes);
}

at::Tensor sequence_to_hidden(const at::Tensor& local, Communicator& axis, std::string_view label,
                              const std::vector<int64_t>& tokens) {
  check_one_per_rank(tokens, axis);
  const int64_t part = divide(local.size(-1), axis, "hidden size");
  const at::Tensor rows = rows_of(local);
  if (axis.size() == 1) return rows;
  // [T_i, n, part] -> first the features for rank 0 of all tokens, then those for rank 1, ..
  const at::Tensor by_rank =
      rows.view({rows.size(0), axis.size(), part}).movedim(1, 0).reshape({-1, part});
  const std::vector<int64_t> own = from_each(axis, rows.size(0));
  return all_to_all_with_all_to_all_backward(by_rank, axis, label, own,
                                             tokens.empty() ? own : tokens);
}

at::Tensor hidden_to_sequence(const at::Tensor& local, Communicator& axis, std::string_view label,
                              const std::vector<int64_t>& tokens) {
  check_one_per_rank(tokens, axis);
  const at::Tensor rows = rows_of(local);
  const int64_t own = tokens.empty() ? divide(rows.size(0), axis, "number of tokens")
                                     : tokens[static_cast<size_t>(axis.rank())];
  if (axis.size() == 1) return rows;
  const std::vector<int64_t> arriving = from_each(axis, own);
  const at::Tensor arrived = all_to_all_with_all_to_all_backward(
      rows, axis, label, tokens.empty() ? arriving : tokens, arriving);
  const int64_t part = rows.size(1);
  return arrived.view({axis.size(), own, part}).movedim(0, 1).reshape({own, axis.size() * part});
}

}  // namespace shardproof
