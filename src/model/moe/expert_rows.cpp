#include "model/moe/expert_rows.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tensor/int64_list.h"

namespace shardproof {

ExpertRows rows_by_expert(const at::Tensor& ids, int64_t num_experts, const at::Tensor& kept) {
  const at::Tensor has_row = kept.defined() ? ids.ge(0).logical_and(kept) : ids.ge(0);
  const at::Tensor routes = has_row.reshape({-1}).nonzero().view({-1});
  const at::Tensor experts = ids.reshape({-1}).index({routes});
  const at::Tensor order = experts.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  std::vector<int64_t> counts = int64_list(experts.bincount({}, num_experts));
  SHARDPROOF_ASSERT(std::ssize(counts) == num_experts,
                    fmt::format("a token chose expert {}, and the ranks that its row goes to hold "
                                "{}: experts are cut over other ranks than rows go to",
                                counts.size() - 1, num_experts));
  return {.routes = routes.index({order}),
          .counts = std::move(counts),
          .tokens = ids.size(0),
          .num_chosen = ids.size(1)};
}

ExpertRows padded_rows(const ExpertRows& rows, int64_t multiple) {
  ExpertRows padded = rows;
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (int64_t& count : padded.counts) {
    const at::Tensor own = rows.routes.narrow(0, first, count);
    first += count;
    count = (count + multiple - 1) / multiple * multiple;
    parts.push_back(at::constant_pad_nd(own, {0, count - own.size(0)}, -1));
  }
  padded.routes = at::cat(parts);
  return padded;
}

at::Tensor gather_rows(const at::Tensor& x, const ExpertRows& rows) {
  const at::Tensor pads = rows.routes.lt(0);
  const at::Tensor tokens =
      rows.routes.clamp_min(0).div(std::max<int64_t>(rows.num_chosen, 1), "floor");
  const at::Tensor gathered = x.index_select(0, tokens);
  return pads.any().item<bool>() ? gathered.masked_fill(pads.unsqueeze(-1), 0) : gathered;
}

at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const ExpertRows& rows) {
  SHARDPROOF_ASSERT(weight.size(0) == std::ssize(rows.counts), "each expert has a weight");
  const std::vector<at::Tensor> parts = x.split_with_sizes(rows.counts);
  const std::vector<at::Tensor> weights = weight.unbind(0);
  const std::vector<at::Tensor> biases = bias.defined() ? bias.unbind(0) : weights;
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < parts.size(); ++i) {
    results.push_back(bias.defined() ? at::linear(parts[i], weights[i], biases[i])
                                     : at::linear(parts[i], weights[i]));
  }
  return at::cat(results);
}

at::Tensor combine_rows(const at::Tensor& outputs, const at::Tensor& weights,
                        const ExpertRows& rows) {
  const at::Tensor real = rows.routes.ge(0).nonzero().view({-1});
  const at::Tensor by_route =
      at::zeros({rows.tokens * rows.num_chosen, outputs.size(1)}, outputs.options())
          .index_copy(0, rows.routes.index({real}), outputs.index_select(0, real))
          .view({rows.tokens, rows.num_chosen, outputs.size(1)});
  const bool narrow = outputs.scalar_type() == at::kHalf;
  const at::ScalarType dtype = narrow ? weights.scalar_type() : outputs.scalar_type();
  const at::Tensor wide = by_route.to(dtype), factors = weights.to(dtype).unsqueeze(-1);
  at::Tensor sum = wide.select(1, 0) * factors.select(1, 0);
  for (int64_t k = 1; k < rows.num_chosen; ++k) {
    sum = sum + wide.select(1, k) * factors.select(1, k);
  }
  return sum.to(outputs.scalar_type());
}

}  // namespace shardproof
