// Attention on one device without layouts, tiles or blocks: every score, a mask by token, softmax,
// and autograd for the gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardproof::tests {

// The sequences of a row: each has `lengths` tokens and is padded to `padded`.
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

// q [B, T, H, D], k, v [B, T, H_kv, D] -> [B, T, H, D]; padding gets 0.
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const Row& row, const PlainRule& rule);

}  // namespace shardproof::tests
