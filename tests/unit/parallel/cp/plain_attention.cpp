#include "tests/unit/parallel/cp/plain_attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

namespace shardproof::tests {

at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const Row& row, const PlainRule& rule) {
  std::vector<int64_t> tokens, sequence, position;
  const std::vector<int64_t> starts = row.cu_seqlens_padded();
  for (size_t s = 0; s < row.lengths.size(); ++s) {
    for (int64_t p = 0; p < row.lengths[s]; ++p) {
      tokens.push_back(starts[s] + p);
      sequence.push_back(static_cast<int64_t>(s));
      position.push_back(p);
    }
  }
  const auto count = static_cast<int64_t>(tokens.size());
  at::Tensor bias = at::zeros({count, count}, q.options());
  auto cells = bias.accessor<double, 2>();
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t ahead = position[j] - position[i];
      bool seen = sequence[i] == sequence[j];
      if (rule.causal && ahead > 0) seen = false;
      if (rule.window > 0 && std::abs(ahead) >= rule.window) seen = false;
      if (!seen) cells[i][j] = -std::numeric_limits<double>::infinity();
    }
  }
  const at::Tensor index = at::tensor(tokens, at::kLong);
  const int64_t heads = q.size(2), group = heads / k.size(2);
  std::vector<at::Tensor> outs;
  for (int64_t h = 0; h < heads; ++h) {
    const at::Tensor qh = q.select(2, h).index_select(1, index);
    const at::Tensor kh = k.select(2, h / group).index_select(1, index);
    const at::Tensor vh = v.select(2, h / group).index_select(1, index);
    const at::Tensor scores =
        at::matmul(qh, kh.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(3))) + bias;
    outs.push_back(at::matmul(scores.softmax(-1), vh));
  }
  return at::zeros_like(q).index_copy(1, index, at::stack(outs, 2));
}

}  // namespace shardproof::tests
