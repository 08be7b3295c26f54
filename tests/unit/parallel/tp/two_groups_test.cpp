// Chains of layers on two groups of different size and layout in one process: each layer
// communicates on its own group, in its forward and in its backward, which comes after the forward
// of the other chain.
#include <catch2/catch.hpp>

#include "parallel/tp/column_parallel.h"
#include "parallel/tp/row_parallel.h"
#include "parallel/tp/vocab_parallel_embedding.h"
#include "tests/support/run_gloo_ranks.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests::two_groups_test {
namespace {

constexpr int64_t kV = 12, kE = 5, kF = 12;

struct Chain {
  at::Tensor ids = at::arange(14, at::kLong).mul(5).remainder(kV).view({2, 7});
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

// The axes over which a chain's column is cut, and its embedding and its row.
struct Axes {
  const char *column, *row;
};
constexpr Axes kChains[] = {{"outer", "inner"}, {"inner", "outer"}};

// A chain after its forward.
struct Sharded {
  ParameterPtr embedding, column, row;
  at::Tensor y;
};

Sharded sharded_chain(const Chain& chain, Communicator& of_column, Communicator& of_row) {
  Sharded own{.embedding = cut_parameter(chain.embedding, 0, of_row),
              .column = cut_parameter(chain.column, 0, of_column),
              .row = cut_parameter(chain.row, 1, of_row),
              .y = {}};
  VocabParallelEmbedding embedding(own.embedding, of_row, {.label = "embedding"});
  ColumnParallelLinear column(own.column, nullptr, of_column,
                              {.label = "column", .gather_output = true, .async_grad = true});
  RowParallelLinear row(own.row, nullptr, of_row, {.label = "row", .input_is_parallel = false});
  own.y = run_layer(row, run_layer(column, run_layer(embedding, chain.ids)).tanh());
  return own;
}

NamedResults both_chains(const Chain& chain, MeshComm& comm) {
  std::vector<Sharded> chains;
  for (const Axes& axes : kChains) {
    chains.push_back(sharded_chain(chain, comm.along(axes.column), comm.along(axes.row)));
  }
  NamedResults results;
  for (size_t i = 0; i < 2; ++i) {
    const std::string prefix = kChains[i].column + std::string(" ");
    chains[i].y.backward(chain.grad);
    results[prefix + "y"] = chains[i].y.detach();
    results[prefix + "embedding"] = chains[i].embedding->tensor.grad();
    results[prefix + "column"] = chains[i].column->tensor.grad();
    results[prefix + "row"] = chains[i].row->tensor.grad();
  }
  return results;
}

TEST_CASE("layers on two groups of one process keep to their own", "[tp][TP-1][TP-2][TP-3]") {
  const Chain chain;
  const NamedResults golden = plain_chain(chain);
  const Mesh mesh({{"outer", 3}, {"inner", 2}});  // outer groups {0,2,4}, {1,3,5}; inner {0,1}, ..
  for (const auto world : {run_emulated_ranks, run_gloo_ranks}) {
    std::vector<NamedResults> results(static_cast<size_t>(mesh.world_size()));
    world(mesh, [&](MeshComm& comm, int64_t rank) {
      results[static_cast<size_t>(rank)] = both_chains(chain, comm);
    });
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      for (const Axes& axes : kChains) {
        INFO("column over " << axes.column << " rank " << rank);
        const auto check = [&](const std::string& name, const at::Tensor& own) {
          CHECK(difference(own, results[static_cast<size_t>(rank)].at(axes.column + name)) == "");
        };
        const auto part = [&](const char* name, int64_t dim, const char* axis) {
          return part_at(golden.at(name), dim, mesh.coordinate(axis, rank), mesh.size(axis));
        };
        check(" y", golden.at("y"));
        check(" embedding", part("embedding", 0, axes.row));
        check(" column", part("column", 0, axes.column));
        check(" row", part("row", 1, axes.row));
      }
    }
  }
}

}  // namespace
}  // namespace shardproof::tests::two_groups_test
