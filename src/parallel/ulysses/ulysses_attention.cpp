#include "parallel/ulysses/ulysses_attention.h"

#include <ATen/ATen.h>

#include "parallel/ulysses/head_shares.h"
#include "parallel/ulysses/sequence_all_to_all.h"

namespace shardproof {
namespace {

constexpr int64_t kTokens = 1;
constexpr int64_t kHeads = 2;

// Repeats heads; autograd sums the gradients of the copies.
at::Tensor repeated(const at::Tensor& heads, int64_t repeats) {
  return repeats == 1 ? heads : heads.repeat_interleave(repeats, kHeads);
}

}  // namespace

at::Tensor ulysses_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             Communicator& ulysses, const AttentionCore& core,
                             const std::string& label) {
  const HeadShares shares = head_shares(q.size(kHeads), k.size(kHeads), ulysses.size());
  const auto to_heads = [](const at::Tensor& tensor) {
    return DimTrade{.tensor = tensor, .scatter_dim = kHeads, .gather_dim = kTokens};
  };
  const std::vector<at::Tensor> whole =
      sequence_all_to_all({to_heads(q), to_heads(repeated(k, shares.kv_repeats)),
                           to_heads(repeated(v, shares.kv_repeats))},
                          ulysses, label + " qkv");
  const at::Tensor out = core(whole[0], whole[1], whole[2]);
  return sequence_all_to_all({{.tensor = out, .scatter_dim = kTokens, .gather_dim = kHeads}},
                             ulysses, label + " out")[0];
}

}  // namespace shardproof
