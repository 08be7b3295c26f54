// Attention on one device, written out: every score, a mask made token by token, softmax, and
// autograd for the gradients. It knows nothing of layouts, tiles or blocks.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

namespace shardproof::tests {

// The sequences of a row: `lengths` tokens each, padded to `padded` each.
struct Row {
  std::vector<int64_t> lengths;
  std::vector<int64_t> padded;
  std::vector<int64_t> cu_seqlens() const { return sums(lengths); }
  std::vector<int64_t> cu_seqlens_padded() const { return sums(padded); }
  int64_t size() const { return sums(padded).back(); }

 private:
  static std::vector<int64_t> sums(const std::vector<int64_t>& parts) {
    std::vector<int64_t> out{0};
    for (const int64_t part : parts) out.push_back(out.back() + part);
    return out;
  }
};

struct PlainRule {
  bool causal = true;
  int64_t window = 0;
};

// q [B, T, H, D], k, v [B, T, H_kv, D] -> [B, T, H, D]; 0 at padding.
inline at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
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
