// A chain of layers on two groups of different size and layout in one process: each layer
// communicates on its own group, in the forward and in the backward.
#include <catch2/catch.hpp>

#include "parallel/tp/column_parallel.h"
#include "parallel/tp/row_parallel.h"
#include "parallel/tp/vocab_parallel_embedding.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests::two_groups_test {
namespace {

constexpr int64_t kV = 10, kE = 5, kF = 12;

struct Chain {
  at::Tensor ids = at::arange(14, at::kLong).mul(3).remainder(kV).view({2, 7});
  at::Tensor embedding = random_tensor({kV, kE}, 1), column = random_tensor({kF, kE}, 2);
  at::Tensor row = random_tensor({kE, kF}, 3), grad = random_tensor({2, 7, kE}, 4);
};

NamedResults plain_chain(const Chain& chain) {
  const at::Tensor embedding = chain.embedding.clone().requires_grad_();
  const at::Tensor column = chain.column.clone().requires_grad_();
  const at::Tensor row = chain.row.clone().requires_grad_();
  const at::Tensor y =
      at::linear(at::linear(at::embedding(embedding, chain.ids), column).tanh(), row);
  y.backward(chain.grad);
  return {{"y", y.detach()},
          {"embedding", embedding.grad()},
          {"column", column.grad()},
          {"row", row.grad()}};
}

NamedResults sharded_chain(const Chain& chain, Communicator& outer, Communicator& inner) {
  const ParameterPtr table = cut_parameter(chain.embedding, 0, inner);
  const ParameterPtr up = cut_parameter(chain.column, 0, outer);
  const ParameterPtr down = cut_parameter(chain.row, 1, inner);
  VocabParallelEmbedding embedding(table, inner, {.label = "embedding"});
  ColumnParallelLinear column(up, nullptr, outer,
                              {.label = "column", .gather_output = true, .async_grad = true});
  RowParallelLinear row(down, nullptr, inner, {.label = "row", .input_is_parallel = false});
  const at::Tensor hidden = run_layer(column, run_layer(embedding, chain.ids));
  const at::Tensor y = run_layer(row, hidden.tanh());
  y.backward(chain.grad);
  return {{"y", y.detach()},
          {"embedding", table->tensor.grad()},
          {"column", up->tensor.grad()},
          {"row", down->tensor.grad()}};
}

TEST_CASE("layers on two groups of one process keep to their own", "[tp][TP-1][TP-2][TP-3]") {
  const Chain chain;
  const NamedResults golden = plain_chain(chain);
  const Mesh mesh({{"outer", 3}, {"inner", 2}});  // outer groups {0,2,4}, {1,3,5}; inner {0,1}, ..
  const auto work = [&](MeshComm& comm, int64_t) {
    return sharded_chain(chain, comm.along("outer"), comm.along("inner"));
  };
  for (const auto& results : {on_every_rank(mesh, work), on_every_gloo_rank(mesh, work)}) {
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const auto outer = static_cast<size_t>(mesh.coordinate("outer", rank));
      const auto inner = static_cast<size_t>(mesh.coordinate("inner", rank));
      const NamedResults& own = results[static_cast<size_t>(rank)];
      CHECK(difference(golden.at("y"), own.at("y")) == "");
      CHECK(difference(part_at(golden.at("embedding"), 0, inner, 2), own.at("embedding")) == "");
      CHECK(difference(part_at(golden.at("column"), 0, outer, 3), own.at("column")) == "");
      CHECK(difference(part_at(golden.at("row"), 1, inner, 2), own.at("row")) == "");
    }
  }
}

}  // namespace
}  // namespace shardproof::tests::two_groups_test
