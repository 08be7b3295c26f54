// The tensor-parallel layers against values and gradients that plain PyTorch gave in Python, stored
// under golden/witness with the script that made them.
#include <catch2/catch.hpp>

#include "parallel/tp/column_linear.h"
#include "parallel/tp/row_linear.h"
#include "parallel/tp/vocab_embedding.h"
#include "tensor/safetensors.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests {
namespace {

SafetensorsFile witness() { return SafetensorsFile::open("golden/witness/layers.safetensors"); }

// One linear layer's parameters from the file, this rank's part in `layer`.
template <class Layer>
void fill(Layer& layer, const at::Tensor& bias) {
  const at::NoGradGuard no_grad;
  layer.bias()->tensor.copy_(bias);
}

at::Tensor of_rank(const at::Tensor& full, int64_t dim, const Communicator& tp) {
  return part_at(full, dim, static_cast<size_t>(tp.rank()), static_cast<size_t>(tp.size()));
}

at::Tensor leaf_of(const at::Tensor& values) { return values.clone().requires_grad_(); }

TEST_CASE("ColumnLinear is PyTorch's linear", "[tp][TP-1][witness]") {
  const SafetensorsFile file = witness();
  const auto of = [&](const char* name) { return file.get("column." + std::string(name)); };
  for (const bool sp : {false, true}) {
    on_every_group(
        {1, 2, 3, 4},
        [&](Communicator& tp) -> NamedResults {
          ColumnLinear layer({.input_size = 5,
                              .output_size = 24,
                              .sequence_parallel = sp,
                              .dtype = at::kDouble,
                              .init = filled_with(of("weight"))},
                             tp);
          fill(layer, of_rank(of("bias"), 0, tp));
          const at::Tensor x =
              leaf_of(layer.sequence_parallel() ? of_rank(of("x"), 0, tp) : of("x"));
          const at::Tensor y = layer.forward(x).output;
          y.backward(of_rank(of("grad"), -1, tp));
          return {{"y", y.detach()},
                  {"x", x.grad()},
                  {"weight", layer.weight()->tensor.grad()},
                  {"bias", layer.bias()->tensor.grad()}};
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

TEST_CASE("RowLinear is PyTorch's linear", "[tp][TP-2][witness]") {
  const SafetensorsFile file = witness();
  const auto of = [&](const char* name) { return file.get("row." + std::string(name)); };
  for (const bool sp : {false, true}) {
    on_every_group(
        {1, 2, 3, 4},
        [&](Communicator& tp) -> NamedResults {
          RowLinear layer({.input_size = 24,
                           .output_size = 5,
                           .sequence_parallel = sp,
                           .dtype = at::kDouble,
                           .init = filled_with(of("weight"))},
                          tp);
          fill(layer, of("bias"));
          const at::Tensor x = leaf_of(of_rank(of("x"), -1, tp));
          const at::Tensor y = layer.forward(x).output;
          y.backward(layer.sequence_parallel() ? of_rank(of("grad"), 0, tp) : of("grad"));
          at::Tensor bias = layer.bias()->tensor.grad();
          if (layer.bias()->sequence_parallel) bias = tp.all_reduce(bias, ReduceOp::kSum, "bias");
          return {{"y", y.detach()},
                  {"x", x.grad()},
                  {"weight", layer.weight().tensor.grad()},
                  {"bias", bias}};
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

TEST_CASE("VocabEmbedding is PyTorch's embedding", "[tp][TP-3][witness]") {
  const SafetensorsFile file = witness();
  const auto of = [&](const char* name) { return file.get("embedding." + std::string(name)); };
  on_every_group(
      {1, 2, 3, 4},
      [&](Communicator& tp) -> NamedResults {
        VocabEmbedding layer({.num_embeddings = 36,
                              .embedding_dim = 5,
                              .dtype = at::kDouble,
                              .init = filled_with(of("weight"))},
                             tp);
        const at::Tensor y = layer.forward(of("ids"));
        y.backward(of("grad"));
        return {{"y", y.detach()}, {"weight", layer.weight().tensor.grad()}};
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
          ColumnLinear gate_up({.input_size = 5,
                                .output_size = 48,
                                .bias = false,
                                .stride = 2,
                                .sequence_parallel = sp,
                                .dtype = at::kDouble,
                                .init = filled_with(of("gate_up"))},
                               tp);
          RowLinear down({.input_size = 24,
                          .output_size = 5,
                          .bias = false,
                          .sequence_parallel = sp,
                          .dtype = at::kDouble,
                          .init = filled_with(of("down"))},
                         tp);
          const bool cut = gate_up.sequence_parallel();
          const at::Tensor x = leaf_of(cut ? of_rank(of("x"), 0, tp) : of("x"));
          const auto halves = gate_up.forward(x).output.chunk(2, -1);
          const at::Tensor y = down.forward(at::silu(halves[0]) * halves[1]).output;
          y.backward(cut ? of_rank(of("grad"), 0, tp) : of("grad"));
          return {{"y", y.detach()},
                  {"x", x.grad()},
                  {"gate_up", gate_up.weight()->tensor.grad()},
                  {"down", down.weight().tensor.grad()}};
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
        VocabEmbedding embedding({.num_embeddings = 36,
                                  .embedding_dim = 5,
                                  .dtype = at::kDouble,
                                  .init = filled_with(file.get("tied.weight"))},
                                 tp);
        ColumnLinear head(
            {.input_size = 5, .output_size = 36, .bias = false, .external_weight = true}, tp);
        const at::Tensor& weight = embedding.weight().tensor;
        const auto main = std::make_shared<MainGradient>(
            MainGradient{.sum = at::zeros_like(weight), .wants_dummy = true, .zero_dummy = true});
        for (int64_t i = 0; i < 3; ++i) {
          const at::Tensor x = embedding.forward(ids[i]).tanh();
          const at::Tensor y = head.forward(x, {.weight = weight, .main_gradient = main}).output;
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
