// Worlds, plain answers and plain cuts for the tests of sharded logprobs.
#pragma once

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {

enum class World { kEmulated, kGloo };

inline std::vector<NamedResults> on_every_rank_of(
    World world, const Mesh& mesh, const std::function<NamedResults(MeshComm&, int64_t)>& work) {
  return on_every_rank(mesh, work, world == World::kGloo ? run_gloo_ranks : run_emulated_ranks);
}

struct Split {
  int64_t tp, cp;
  World world = World::kEmulated;
};
inline std::string describe(const Split& split) {
  return "tp=" + std::to_string(split.tp) + " cp=" + std::to_string(split.cp) +
         (split.world == World::kGloo ? " gloo" : " emulated");
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

inline at::Tensor picked_logprob(const at::Tensor& logits, const at::Tensor& target) {
  return at::log_softmax(logits, -1).gather(-1, target.unsqueeze(-1)).squeeze(-1);
}

inline bool exactly_zero(const at::Tensor& tensor) { return tensor.eq(0).all().item<bool>(); }

using Tensors = std::vector<at::Tensor>;

// A function of tensors whose last dim is the vocabulary, and its twin on one device.
struct VocabFunction {
  Tensors inputs;    // whole, float64
  size_t uncut = 0;  // so many of the first inputs have no vocabulary, and tp does not cut them
  std::function<at::Tensor(const Tensors& whole)> plain;
  std::function<at::Tensor(const Tensors& own, Communicator& tp)> sharded;
  double value_scale = 0, grad_scale = 1;  // of `difference`
};

// Every rank's value and gradients are those of one device, in groups of which the second does not
// begin at rank 0; inputs stay as they were, and without gradients the value is the same.
inline void check_over_tp(const VocabFunction& function, int64_t tp) {
  INFO("tp=" << tp << " vocabulary " << function.inputs.back().size(-1));
  const auto leaf_of = [](const at::Tensor& tensor) {
    return tensor.detach().clone().requires_grad_();
  };
  Tensors whole;
  for (const at::Tensor& input : function.inputs) whole.push_back(leaf_of(input));
  const at::Tensor value = function.plain(whole);
  const at::Tensor grad = random_tensor(value.sizes(), 9);
  value.backward(grad);
  const auto part_of = [&](size_t i, const at::Tensor& tensor, int64_t rank, double padding) {
    return i < function.uncut ? tensor : vocab_part(tensor, tp, rank, padding);
  };
  const Mesh mesh = Mesh::training({.dp = 2, .tp = tp});
  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t) -> NamedResults {
    Communicator& group = comm.along("tp");
    Tensors own;
    for (size_t i = 0; i < function.inputs.size(); ++i) {
      own.push_back(leaf_of(part_of(i, function.inputs[i], group.rank(), 1e4)));
    }
    const at::Tensor out = function.sharded(own, group);
    out.backward(grad);
    NamedResults result{{"value", out.detach()}};
    for (size_t i = 0; i < own.size(); ++i) {
      result["grad " + std::to_string(i)] = own[i].grad();
      result["after " + std::to_string(i)] = own[i].detach();
    }
    const at::NoGradGuard no_grad;
    result["scored"] = function.sharded(own, group);
    if (result["scored"].requires_grad()) throw std::logic_error("a graph was kept");
    return result;
  });
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const NamedResults& result = results[static_cast<size_t>(rank)];
    const int64_t tp_rank = mesh.coordinate("tp", rank);
    CHECK(difference(value.detach(), result.at("value"), 1e-12, function.value_scale) == "");
    CHECK(result.at("scored").equal(result.at("value")));
    for (size_t i = 0; i < whole.size(); ++i) {
      INFO("rank " << rank << " input " << i);
      const std::string number = std::to_string(i);
      CHECK(difference(part_of(i, whole[i].grad(), tp_rank, 0), result.at("grad " + number), 1e-12,
                       function.grad_scale) == "");
      CHECK(result.at("after " + number).equal(part_of(i, function.inputs[i], tp_rank, 1e4)));
    }
  }
}

}  // namespace shardproof::tests
