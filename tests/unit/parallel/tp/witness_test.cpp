// The tensor-parallel layers against values and gradients of plain PyTorch, which are in
// golden/witness with their script.
#include <catch2/catch.hpp>

#include "parallel/tp/column_parallel.h"
#include "parallel/tp/row_parallel.h"
#include "parallel/tp/vocab_parallel_embedding.h"
#include "tensor/safetensors.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests {
namespace {

SafetensorsFile witness() { return SafetensorsFile::open("golden/witness/layers.safetensors"); }

at::Tensor of_rank(const at::Tensor& full, int64_t dim, const Communicator& tp) {
  return part_at(full, dim, static_cast<size_t>(tp.rank()), static_cast<size_t>(tp.size()));
}

at::Tensor leaf_of(const at::Tensor& values) { return values.clone().requires_grad_(); }

TEST_CASE("ColumnParallelLinear is PyTorch's linear", "[tp][TP-1][witness]") {
  const SafetensorsFile file = witness();
  const auto of = [&](const char* name) { return file.get("column." + std::string(name)); };
  for (const bool sp : {false, true}) {
    on_every_group(
        {1, 2, 3, 4},
        [&](Communicator& tp) -> NamedResults {
          const ParameterPtr weight = cut_parameter(of("weight"), 0, tp);
          const ParameterPtr bias = cut_parameter(of("bias"), 0, tp);
          ColumnParallelLinear layer(weight, bias, tp,
                                     {.label = "l", .sequence_parallel = sp, .async_grad = true});
          const at::Tensor x = leaf_of(sp ? of_rank(of("x"), 0, tp) : of("x"));
          const at::Tensor y = run_tokens_first(layer, x);
          y.backward(of_rank(of("grad"), -1, tp));
          return {{"y", y.detach()},
                  {"x", x.grad()},
                  {"weight", weight->tensor.grad()},
                  {"bias", bias->tensor.grad()}};
        },
        [&](const std::vector<NamedResults>& group) {
          for (size_t rank = 0; rank < group.size(); ++rank) {
            const auto own = [&](const at::Tensor& full, int64_t dim) {
              return part_at(full, dim, rank, group.size());
            };
            const NamedResults& result = group[rank];
            CHECK(difference(own(of("y"), -1), result.at("y")) == "");
            CHECK(difference(sp ? own(of("grad_x"), 0) : of("grad_x"), result.at("x")) == "");
            CHECK(difference(own(of("grad_weight"), 0), result.at("weight")) == "");
            CHECK(difference(own(of("grad_bias"), 0), result.at("bias")) == "");
          }
        });
  }
}

TEST_CASE("RowParallelLinear is PyTorch's linear", "[tp][TP-2][witness]") {
  const SafetensorsFile file = witness();
  const auto of = [&](const char* name) { return file.get("row." + std::string(name)); };
  for (const bool sp : {false, true}) {
    on_every_group(
        {1, 2, 3, 4},
        [&](Communicator& tp) -> NamedResults {
          const ParameterPtr weight = cut_parameter(of("weight"), 1, tp);
          const ParameterPtr bias = cut_parameter(of("bias"), -1, tp);
          RowParallelLinear layer(weight, bias, tp, {.label = "l", .sequence_parallel = sp});
          const at::Tensor x = leaf_of(of_rank(of("x"), -1, tp));
          const at::Tensor y = run_tokens_first(layer, x);
          y.backward(sp ? of_rank(of("grad"), 0, tp) : of("grad"));
          const at::Tensor own = bias->tensor.grad();
          return {{"y", y.detach()},
                  {"x", x.grad()},
                  {"weight", weight->tensor.grad()},
                  {"bias", sp ? tp.all_reduce(own, ReduceOp::kSum, "bias") : own}};
        },
        [&](const std::vector<NamedResults>& group) {
          for (size_t rank = 0; rank < group.size(); ++rank) {
            const auto own = [&](const at::Tensor& full, int64_t dim) {
              return part_at(full, dim, rank, group.size());
            };
            const NamedResults& result = group[rank];
            CHECK(difference(sp ? own(of("y"), 0) : of("y"), result.at("y")) == "");
            CHECK(difference(own(of("grad_x"), -1), result.at("x")) == "");
            CHECK(difference(own(of("grad_weight"), 1), result.at("weight")) == "");
            CHECK(difference(of("grad_bias"), result.at("bias")) == "");
          }
        });
  }
}

TEST_CASE("VocabParallelEmbedding is PyTorch's embedding", "[tp][TP-3][witness]") {
  const SafetensorsFile file = witness();
  const auto of = [&](const char* name) { return file.get("embedding." + std::string(name)); };
  on_every_group(
      {1, 2, 3, 4},
      [&](Communicator& tp) -> NamedResults {
        const ParameterPtr weight = cut_parameter(of("weight"), 0, tp);
        VocabParallelEmbedding layer(weight, tp, {.label = "l"});
        const at::Tensor y = run_layer(layer, of("ids"));
        y.backward(of("grad"));
        return {{"y", y.detach()}, {"weight", weight->tensor.grad()}};
      },
      [&](const std::vector<NamedResults>& group) {
        for (size_t rank = 0; rank < group.size(); ++rank) {
          CHECK(difference(of("y"), group[rank].at("y")) == "");
          CHECK(difference(part_at(of("grad_weight"), 0, rank, group.size()),
                           group[rank].at("weight")) == "");
        }
      });
}

TEST_CASE("a fused gate and up with a row-parallel down is PyTorch's MLP",
          "[tp][TP-1][TP-2][witness]") {
  const SafetensorsFile file = witness();
  const auto of = [&](const char* name) { return file.get("mlp." + std::string(name)); };
  for (const bool sp : {false, true}) {
    on_every_group(
        {1, 2, 3, 4},
        [&](Communicator& tp) -> NamedResults {
          const ParameterPtr fused = cut_parameter(of("gate_up"), 0, tp, {24, 24});
          const ParameterPtr narrowing = cut_parameter(of("down"), 1, tp);
          ColumnParallelLinear gate_up(fused, nullptr, tp,
                                       {.label = "gate_up",
                                        .sequence_parallel = sp,
                                        .blocks = {24, 24},
                                        .async_grad = true});
          RowParallelLinear down(narrowing, nullptr, tp,
                                 {.label = "down", .sequence_parallel = sp});
          const at::Tensor x = leaf_of(sp ? of_rank(of("x"), 0, tp) : of("x"));
          const auto halves = run_tokens_first(gate_up, x).chunk(2, -1);
          const at::Tensor y = run_tokens_first(down, at::silu(halves[0]) * halves[1]);
          y.backward(sp ? of_rank(of("grad"), 0, tp) : of("grad"));
          return {{"y", y.detach()},
                  {"x", x.grad()},
                  {"gate_up", fused->tensor.grad()},
                  {"down", narrowing->tensor.grad()}};
        },
        [&](const std::vector<NamedResults>& group) {
          for (size_t rank = 0; rank < group.size(); ++rank) {
            const auto tokens = [&](const at::Tensor& full) {
              return sp ? part_at(full, 0, rank, group.size()) : full;
            };
            const NamedResults& result = group[rank];
            CHECK(difference(tokens(of("y")), result.at("y")) == "");
            CHECK(difference(tokens(of("grad_x")), result.at("x")) == "");
            CHECK(difference(part_at(of("grad_gate_up"), 0, rank, group.size(), {24, 24}),
                             result.at("gate_up")) == "");
            CHECK(difference(part_at(of("grad_down"), 1, rank, group.size()), result.at("down")) ==
                  "");
          }
        });
  }
}

TEST_CASE("a tied weight's main gradient over microbatches is PyTorch's gradient",
          "[tp][TP-4][witness]") {
  const SafetensorsFile file = witness();
  const at::Tensor ids = file.get("tied.ids"), grad = file.get("tied.grad");
  on_every_group(
      {1, 2, 3, 4},
      [&](Communicator& tp) -> NamedResults {
        const ParameterPtr shared = cut_parameter(file.get("tied.weight"), 0, tp);
        const at::Tensor& weight = shared->tensor;
        const auto main = std::make_shared<MainGradient>(
            MainGradient{.sum = at::zeros_like(weight), .wants_dummy = true, .zero_dummy = true});
        shared->main_gradient = main;
        VocabParallelEmbedding embedding(shared, tp, {.label = "embedding"});
        ColumnParallelLinear head(shared, nullptr, tp, {.label = "head"});
        for (int64_t i = 0; i < 3; ++i) {
          const at::Tensor y = run_layer(head, run_layer(embedding, ids[i]).tanh());
          y.backward(of_rank(grad[i] * (i + 1), -1, tp));
          finish_main_gradient(weight, *main);
        }
        return {{"main", main->sum}};
      },
      [&](const std::vector<NamedResults>& group) {
        for (size_t rank = 0; rank < group.size(); ++rank) {
          CHECK(difference(part_at(file.get("tied.grad_weight"), 0, rank, group.size()),
                           group[rank].at("main")) == "");
        }
      });
}

}  // namespace
}  // namespace shardproof::tests
