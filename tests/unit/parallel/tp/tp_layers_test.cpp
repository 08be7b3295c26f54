// Each tensor-parallel layer against the plain layer it replaces, forward and backward.
#include <catch2/catch.hpp>

#include "mesh/layout.h"
#include "model/decoder.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/placement.h"
#include "parallel/tp/row_parallel.h"
#include "parallel/tp/vocab_parallel_embedding.h"
#include "parallel/tp/whole_layer.h"
#include "tensor/shard.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

constexpr int64_t kSamples = 2, kTokens = 12, kIn = 5, kOut = 10;

ParameterPtr leaf(const std::string& name, const at::Tensor& value) {
  return std::make_shared<Parameter>(Parameter{.name = name,
                                               .tensor = value.detach().clone().requires_grad_(),
                                               .global_shape = value.sizes().vec()});
}

const Layout kWhole;
Layout on_sequence() { return Layout({Cut::even(1, "tp")}); }
Layout chunked(int64_t dim) { return Layout({Cut::chunk(dim, "tp")}); }

// How one layer is tried: what its tensors are cut by on each rank, and the layer itself.
struct LayerCase {
  std::string name;
  Layout input, weight, bias, output;
  bool sums_bias_grad = false;  // this rank's bias gradient is an addend
  std::function<std::unique_ptr<Layer>(ParameterPtr, ParameterPtr, Communicator&)> make;
};

void check_linear(const LayerCase& layer_case, const Mesh& mesh, bool with_bias) {
  INFO(layer_case.name << " " << mesh.describe() << (with_bias ? " with bias" : ""));
  NoProbe nobody;
  const StepContext context{.probe = nobody};
  const at::Tensor x = random_tensor({kSamples, kTokens, kIn}, 1);
  const at::Tensor grad = random_tensor({kSamples, kTokens, kOut}, 2);
  const at::Tensor weight = random_tensor({kOut, kIn}, 3), bias = random_tensor({kOut}, 4);
  const ParameterPtr golden_weight = leaf("weight", weight);
  const ParameterPtr golden_bias = with_bias ? leaf("bias", bias) : nullptr;
  const at::Tensor golden_x = x.clone().requires_grad_();
  const at::Tensor golden = Linear(golden_weight, golden_bias).forward({golden_x}, context);
  golden.backward(grad);

  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
    const auto own = [&](const at::Tensor& full, const Layout& layout) {
      return cut(full, layout, mesh, rank);
    };
    const ParameterPtr own_weight = leaf("weight", own(weight, layer_case.weight));
    const ParameterPtr own_bias = with_bias ? leaf("bias", own(bias, layer_case.bias)) : nullptr;
    const auto layer = layer_case.make(own_weight, own_bias, comm.along("tp"));
    const at::Tensor own_x = own(x, layer_case.input).requires_grad_();
    const at::Tensor y = layer->forward({own_x}, context);
    y.backward(own(grad, layer_case.output));
    NamedResults result = {
        {"y", y.detach()}, {"grad x", own_x.grad()}, {"grad weight", own_weight->tensor.grad()}};
    if (with_bias) {
      const at::Tensor grad_bias = own_bias->tensor.grad();
      result["grad bias"] = layer_case.sums_bias_grad
                                ? comm.along("tp").all_reduce(grad_bias, ReduceOp::kSum, "bias")
                                : grad_bias;
    }
    return result;
  });
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const auto own = [&](const at::Tensor& full, const Layout& layout) {
      return cut(full, layout, mesh, rank);
    };
    const NamedResults& result = results[static_cast<size_t>(rank)];
    CHECK(difference(own(golden.detach(), layer_case.output), result.at("y")) == "");
    CHECK(difference(own(golden_x.grad(), layer_case.input), result.at("grad x")) == "");
    CHECK(difference(own(golden_weight->tensor.grad(), layer_case.weight),
                     result.at("grad weight")) == "");
    if (!with_bias) continue;
    CHECK(difference(own(golden_bias->tensor.grad(), layer_case.bias), result.at("grad bias")) ==
          "");
  }
}

// tp 3 and 4 cut kOut = 10 into 4,4,2 and 3,3,3,1, and kIn = 5 into 2,2,1 and 2,2,1,0.
void check_on_meshes(const std::function<LayerCase(int64_t tp)>& make) {
  for (const int64_t tp : {1, 2, 3, 4}) {
    for (const bool with_bias : {false, true}) {
      check_linear(make(tp), Mesh::training(tp == 2 ? 2 : 1, 1, 1, tp), with_bias);
    }
  }
}

TEST_CASE("ColumnParallel: output cut, uneven, with and without sequence parallel", "[tp][TP-1]") {
  for (const bool sp : {false, true}) {
    check_on_meshes([sp](int64_t) {
      return LayerCase{
          .name = sp ? "column SP" : "column",
          .input = sp ? on_sequence() : kWhole,
          .weight = chunked(0),
          .bias = chunked(0),
          .output = chunked(-1),
          .make = [sp](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
            return std::make_unique<ColumnParallelLinear>(
                weight, bias, tp,
                ColumnParallelLinear::Options{.label = "linear", .sequence_parallel = sp});
          }};
    });
  }
}

TEST_CASE("ColumnParallel with a gathered output: its gradient is sliced, not summed",
          "[tp][TP-1]") {
  check_on_meshes([](int64_t tp_size) {
    return LayerCase{.name = "column gathered",
                     .input = kWhole,
                     .weight = chunked(0),
                     .bias = chunked(0),
                     .output = kWhole,
                     .make = [tp_size](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
                       return std::make_unique<ColumnParallelLinear>(
                           weight, bias, tp,
                           ColumnParallelLinear::Options{.label = "linear",
                                                         .gather_output = true,
                                                         .output_parts = tp_parts(kOut, tp_size)});
                     }};
  });
}

TEST_CASE("RowParallel: the bias is added once after the sum", "[tp][TP-2]") {
  for (const bool sp : {false, true}) {
    check_on_meshes([sp](int64_t) {
      return LayerCase{
          .name = sp ? "row SP" : "row",
          .input = chunked(-1),
          .weight = chunked(1),
          .bias = kWhole,
          .output = sp ? on_sequence() : kWhole,
          .sums_bias_grad = sp,
          .make = [sp](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
            return std::make_unique<RowParallelLinear>(
                weight, bias, tp,
                RowParallelLinear::Options{.label = "linear", .sequence_parallel = sp});
          }};
    });
  }
}

TEST_CASE("RowParallel that cuts its whole input itself", "[tp][TP-2]") {
  check_on_meshes([](int64_t tp_size) {
    return LayerCase{.name = "row scattered",
                     .input = kWhole,
                     .weight = chunked(1),
                     .bias = kWhole,
                     .output = kWhole,
                     .make = [tp_size](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
                       return std::make_unique<RowParallelLinear>(
                           weight, bias, tp,
                           RowParallelLinear::Options{.label = "linear",
                                                      .input_is_parallel = false,
                                                      .input_parts = tp_parts(kIn, tp_size)});
                     }};
  });
}

TEST_CASE("a whole layer between sequence shards opens or closes a region", "[tp][TP-1]") {
  for (const auto place : {WholeLayer::Place::kOpensRegion, WholeLayer::Place::kClosesRegion}) {
    const bool opens = place == WholeLayer::Place::kOpensRegion;
    check_on_meshes([&](int64_t) {
      return LayerCase{.name = opens ? "whole opener" : "whole closer",
                       .input = opens ? on_sequence() : kWhole,
                       .weight = kWhole,
                       .bias = kWhole,
                       .output = opens ? kWhole : on_sequence(),
                       .make = [place](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
                         return std::make_unique<WholeLayer>(std::make_unique<Linear>(weight, bias),
                                                             place, tp, "linear");
                       }};
    });
  }
}

void check_embedding(int64_t vocab_size, int64_t pad_token_id, bool sp, const Mesh& mesh) {
  INFO("vocabulary " << vocab_size << " pad " << pad_token_id << (sp ? " SP " : " ")
                     << mesh.describe());
  NoProbe nobody;
  const StepContext context{.probe = nobody};
  const int64_t tp = mesh.size("tp");
  const at::Tensor ids =
      (at::arange(kSamples * kTokens, at::kLong) * 5 % vocab_size).view({kSamples, kTokens});
  const at::Tensor weight = random_tensor({vocab_size, kIn}, 1);
  const at::Tensor grad = random_tensor({kSamples, kTokens, kIn}, 2);
  const ParameterPtr golden_weight = leaf("weight", weight);
  const at::Tensor golden = Embedding(golden_weight, pad_token_id).forward({ids}, context);
  golden.backward(grad);
  const Layout rows({Cut::padded(0, "tp", round_up(vocab_size, tp))});
  const Layout output = sp ? on_sequence() : kWhole;
  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
    const ParameterPtr own_weight = leaf("weight", cut(weight, rows, mesh, rank));
    VocabParallelEmbedding layer(
        own_weight, comm.along("tp"),
        {.label = "embedding", .pad_token_id = pad_token_id, .sequence_parallel = sp});
    const at::Tensor y = layer.forward({ids}, context);
    y.backward(cut(grad, output, mesh, rank));
    return {{"y", y.detach()}, {"grad", own_weight->tensor.grad()}};
  });
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const NamedResults& result = results[static_cast<size_t>(rank)];
    CHECK(difference(cut(golden.detach(), output, mesh, rank), result.at("y")) == "");
    CHECK(difference(cut(golden_weight->tensor.grad(), rows, mesh, rank), result.at("grad")) == "");
  }
}

TEST_CASE("VocabParallelEmbedding: each token looked up by its owner, the pad row without gradient",
          "[tp][TP-3]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    for (const bool sp : {false, true}) {
      check_embedding(12, -1, sp, Mesh::training(1, 1, 1, tp));
      check_embedding(13, 7, sp,
                      Mesh::training(1, 1, 1, tp));  // padded; the pad row on a middle rank
      check_embedding(5, 0, sp, Mesh::training(1, 1, 1, tp));  // tp 4: a rank of padding alone
    }
  }
  check_embedding(13, 12, true, Mesh::training(2, 1, 1, 2));
}

TEST_CASE("two embeddings of one shape do not share anything", "[tp][TP-3]") {
  NoProbe nobody;
  const StepContext context{.probe = nobody};
  const Mesh mesh = Mesh::training(1, 1, 1, 2);
  const at::Tensor first = random_tensor({6, 3}, 1), second = random_tensor({6, 3}, 2);
  const at::Tensor ids_a = at::arange(6, at::kLong).view({1, 6}), ids_b = ids_a.flip(1);
  const Layout rows({Cut::even(0, "tp")});
  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
    Communicator& tp = comm.along("tp");
    VocabParallelEmbedding a(leaf("a", cut(first, rows, mesh, rank)), tp, {.label = "a"});
    VocabParallelEmbedding b(leaf("b", cut(second, rows, mesh, rank)), tp, {.label = "b"});
    const at::Tensor from_a = a.forward({ids_a}, context), from_b = b.forward({ids_b}, context);
    return {{"a", from_a.detach()}, {"b", from_b.detach()}};
  });
  for (const auto& result : results) {
    CHECK(result.at("a").equal(at::embedding(first, ids_a)));
    CHECK(result.at("b").equal(at::embedding(second, ids_b)));
  }
}

}  // namespace
}  // namespace shardproof::tests
