// Worlds, plain answers and plain cuts for the tests of sharded logprobs.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {

enum class World { kEmulated, kGloo };

inline std::vector<NamedResults> on_every_rank_of(
    World world, const Mesh& mesh, const std::function<NamedResults(MeshComm&, int64_t)>& work) {
  if (world == World::kEmulated) return on_every_rank(mesh, work);
  std::vector<NamedResults> results(static_cast<size_t>(mesh.world_size()));
  run_gloo_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
    results[static_cast<size_t>(rank)] = work(comm, rank);
  });
  return results;
}

struct Split {
  int64_t tp, cp;
  World world = World::kEmulated;
};
inline std::string describe(const Split& split) {
  return "tp=" + std::to_string(split.tp) + " cp=" + std::to_string(split.cp) +
         (split.world == World::kGloo ? " gloo" : " emulated");
}
// tp and cp of 1 to 4, alone and combined up to 8 ranks.
inline std::vector<Split> all_splits() {
  return {{1, 1},
          {2, 1},
          {3, 1},
          {4, 1},
          {1, 2},
          {1, 3},
          {1, 4},
          {2, 2},
          {2, 3},
          {3, 2},
          {4, 2},
          {2, 4},
          {1, 1, World::kGloo},
          {2, 1, World::kGloo},
          {1, 2, World::kGloo},
          {1, 3, World::kGloo},
          {2, 2, World::kGloo},
          {4, 2, World::kGloo}};
}

// The chunks that zigzag gives a rank, cut by hand.
inline at::Tensor zigzag_of(const at::Tensor& full, int64_t cp, int64_t cp_rank, int64_t dim) {
  if (cp == 1) return full;
  const int64_t chunk = full.size(dim) / (2 * cp);
  return at::cat({full.narrow(dim, cp_rank * chunk, chunk),
                  full.narrow(dim, (2 * cp - 1 - cp_rank) * chunk, chunk)},
                 dim);
}

// Part tp_rank of the vocabulary, which is padded to a multiple of tp with `padding`.
inline at::Tensor vocab_part(const at::Tensor& full, int64_t tp, int64_t tp_rank,
                             double padding = 1e4) {
  const int64_t columns = (full.size(-1) + tp - 1) / tp;
  return at::constant_pad_nd(full, {0, columns * tp - full.size(-1)}, padding)
      .narrow(-1, tp_rank * columns, columns)
      .contiguous();
}

// Ids in every shard, including the first and the last of each.
inline at::Tensor spread_ids(at::IntArrayRef shape, int64_t vocab_size, int64_t step = 7) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return ((at::arange(count, at::kLong) * step + 3) % vocab_size).view(shape);
}

struct PlainAnswer {
  at::Tensor value, grad;
};

// `function` of a float64 leaf on one device, and the leaf's gradient under `grad`.
inline PlainAnswer plain(const at::Tensor& input, const at::Tensor& grad,
                         const std::function<at::Tensor(const at::Tensor&)>& function) {
  const at::Tensor leaf = input.detach().clone().requires_grad_();
  const at::Tensor value = function(leaf);
  if (value.numel() > 0) value.backward(grad);
  return {value.detach(), leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf)};
}

// [B, S, V], [B, S] -> [B, S-1]
inline at::Tensor plain_next_token(const at::Tensor& logits, const at::Tensor& target) {
  const int64_t scored = std::max<int64_t>(target.size(1) - 1, 0);
  const at::Tensor all = at::log_softmax(logits.narrow(1, 0, scored), -1);
  return all.gather(-1, target.narrow(1, target.size(1) - scored, scored).unsqueeze(-1))
      .squeeze(-1);
}

inline bool exactly_zero(const at::Tensor& tensor) { return tensor.eq(0).all().item<bool>(); }

}  // namespace shardproof::tests
