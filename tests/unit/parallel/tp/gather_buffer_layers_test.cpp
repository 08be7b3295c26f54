// Sequence-parallel layers that gather into one buffer: values do not change, layers in sequence
// share one memory, and two whose gathered inputs are needed together do not.
#include <catch2/catch.hpp>

#include "collective/mappings.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/row_parallel.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests::gather_buffer_layers_test {
namespace {

constexpr int64_t kS = 12, kB = 2, kE = 5, kF = 12;

struct Blocks {
  at::Tensor x = random_tensor({kS, kB, kE}, 1), grad = random_tensor({kS, kB, kE}, 2);
  std::vector<at::Tensor> up, down;  // of each block
};

Blocks two_blocks() {
  Blocks blocks;
  for (int64_t i = 0; i < 2; ++i) {
    blocks.up.push_back(random_tensor({kF, kE}, 3 + i));
    blocks.down.push_back(random_tensor({kE, kF}, 5 + i));
  }
  return blocks;
}

NamedResults plain_blocks(const Blocks& blocks, bool frozen) {
  at::Tensor x = blocks.x.clone().requires_grad_();
  at::Tensor y = x;
  NamedResults results;
  std::vector<at::Tensor> ups, downs;
  for (size_t i = 0; i < 2; ++i) {
    ups.push_back(blocks.up[i].clone().requires_grad_(!frozen));
    downs.push_back(blocks.down[i].clone().requires_grad_());
    y = y + at::linear(at::linear(y, ups[i]).tanh(), downs[i]);
  }
  y.backward(blocks.grad);
  results["y"] = y.detach();
  results["x"] = x.grad();
  for (size_t i = 0; i < 2; ++i) {
    if (!frozen) results["up" + std::to_string(i)] = ups[i].grad();
    results["down" + std::to_string(i)] = downs[i].grad();
  }
  return results;
}

NamedResults sharded_blocks(const Blocks& blocks, Communicator& tp, bool frozen) {
  const auto buffer = std::make_shared<GatherBuffer>();
  std::vector<ColumnParallelLinear> ups;
  std::vector<RowParallelLinear> downs;
  std::vector<ParameterPtr> up_weights, down_weights;
  for (size_t i = 0; i < 2; ++i) {
    up_weights.push_back(cut_parameter(blocks.up[i], 0, tp));
    up_weights[i]->tensor.requires_grad_(!frozen);
    down_weights.push_back(cut_parameter(blocks.down[i], 1, tp));
    ups.push_back(ColumnParallelLinear(
        up_weights[i], nullptr, tp,
        {.label = "up", .sequence_parallel = true, .async_grad = true, .gather_buffer = buffer}));
    downs.push_back(
        RowParallelLinear(down_weights[i], nullptr, tp,
                          {.label = "down", .sequence_parallel = true, .gather_buffer = buffer}));
  }
  const auto own = [&](const at::Tensor& full) {
    return part_at(full, 0, static_cast<size_t>(tp.rank()), static_cast<size_t>(tp.size()));
  };
  NamedResults results;
  for (int step = 0; step < 2; ++step) {  // the second step finds old values in the memory
    for (size_t i = 0; i < 2; ++i) {
      up_weights[i]->tensor.mutable_grad() = at::Tensor();
      down_weights[i]->tensor.mutable_grad() = at::Tensor();
    }
    const at::Tensor x = own(blocks.x).clone().requires_grad_();
    at::Tensor y = x;
    for (size_t i = 0; i < 2; ++i) {
      y = y + run_tokens_first(downs[i], run_tokens_first(ups[i], y).tanh());
    }
    y.backward(own(blocks.grad));
    results["y"] = y.detach();
    results["x"] = x.grad();
  }
  for (size_t i = 0; i < 2; ++i) {
    if (!frozen) results["up" + std::to_string(i)] = up_weights[i]->tensor.grad();
    results["down" + std::to_string(i)] = down_weights[i]->tensor.grad();
  }
  results["memories"] = at::full({}, buffer->count());
  results["in use"] = at::full({}, buffer->in_use());
  return results;
}

TEST_CASE("layers on one gather buffer give what they give without, from one memory",
          "[tp][SH-2][TP-4]") {
  const Blocks blocks = two_blocks();
  for (const bool frozen : {false, true}) {
    const NamedResults golden = plain_blocks(blocks, frozen);
    for (const int64_t tp : {1, 2, 3, 4}) {
      const Mesh mesh({{"dp", 2}, {"tp", tp}});
      const auto body = [&](MeshComm& comm, int64_t) {
        return sharded_blocks(blocks, comm.along("tp"), frozen);
      };
      const auto emulated = on_every_rank(mesh, body);
      for (const auto& all : {emulated, on_every_gloo_rank(mesh, body)}) {
        for (size_t rank = 0; rank < all.size(); ++rank) {
          INFO("tp=" << tp << " rank " << rank << (frozen ? " frozen" : ""));
          const size_t tp_rank = rank % static_cast<size_t>(tp);
          for (const auto& [name, full] : golden) {
            const int64_t dim = name.substr(0, 4) == "down" ? 1 : 0;
            const at::Tensor part = part_at(full, dim, tp_rank, static_cast<size_t>(tp));
            CHECK(difference(part, all[rank].at(name)) == "");
          }
        }
      }
      for (const NamedResults& rank : emulated) {
        // Each layer releases its gathered input before the next one gathers.
        CHECK(rank.at("memories").item<int64_t>() == (tp == 1 ? 0 : 1));
        CHECK(rank.at("in use").item<int64_t>() == 0);
      }
    }
  }
}

TEST_CASE("a layer that gathers while another's gathered input waits for its backward",
          "[tp][SH-2]") {
  const at::Tensor full = random_tensor({kS, kB, kE}, 1), grad = random_tensor({kS, kB, kF}, 2);
  const at::Tensor weight = random_tensor({kF, kE}, 3);
  const at::Tensor x = full.clone().requires_grad_(), kept = weight.clone().requires_grad_();
  const at::Tensor other = weight.clone().requires_grad_();
  (at::linear(x, kept) + at::linear(x.tanh(), other)).backward(grad);
  const auto body = [&](MeshComm& comm, int64_t) -> NamedResults {
    Communicator& tp = comm.along("tp");
    const auto own = [&](const at::Tensor& all, int64_t dim) {
      return part_at(all, dim, static_cast<size_t>(tp.rank()), static_cast<size_t>(tp.size()));
    };
    const auto buffer = std::make_shared<GatherBuffer>();
    const ParameterPtr others = cut_parameter(weight, 0, tp);
    ColumnParallelLinear layer(
        others, nullptr, tp,
        {.label = "other", .sequence_parallel = true, .async_grad = true, .gather_buffer = buffer});
    const at::Tensor part = own(full, 0).clone().requires_grad_();
    const at::Tensor rows = own(weight, 0).clone().requires_grad_();
    const at::Tensor gathered =
        all_gather_with_reduce_scatter_backward(part, tp, 0, "kept", {}, buffer.get());
    const at::Tensor first = at::linear(gathered, rows);  // autograd saves `gathered`
    const at::Tensor y = first + run_tokens_first(layer, part.tanh());
    const int64_t used = buffer->in_use();
    y.backward(own(grad, -1));
    return {{"x", part.grad()},
            {"kept", rows.grad()},
            {"other", others->tensor.grad()},
            {"used", at::full({}, used)},
            {"memories", at::full({}, buffer->count())}};
  };
  for (const int64_t tp : {2, 3, 4}) {
    for (const auto& all :
         {on_every_rank(Mesh({{"tp", tp}}), body), on_every_gloo_rank(Mesh({{"tp", tp}}), body)}) {
      for (size_t rank = 0; rank < all.size(); ++rank) {
        const auto own = [&](const at::Tensor& whole) {
          return part_at(whole, 0, rank, static_cast<size_t>(tp));
        };
        CHECK(difference(own(x.grad()), all[rank].at("x")) == "");
        CHECK(difference(own(kept.grad()), all[rank].at("kept")) == "");
        CHECK(difference(own(other.grad()), all[rank].at("other")) == "");
        CHECK(all[rank].at("used").item<int64_t>() >= 1);
        CHECK(all[rank].at("memories").item<int64_t>() >= 2);
      }
    }
  }
}

}  // namespace
}  // namespace shardproof::tests::gather_buffer_layers_test
