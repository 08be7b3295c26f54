// The vocabulary-parallel embedding against the plain embedding that it replaces.
#include "parallel/tp/vocab_parallel_embedding.h"

#include <ATen/Parallel.h>

#include <catch2/catch.hpp>

#include "base/checked.h"
#include "mesh/layout.h"
#include "model/decoder.h"
#include "tensor/shard.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests::vocab_parallel_embedding_test {
namespace {

constexpr int64_t kSamples = 2, kTokens = 12, kIn = 5;

void check_embedding(int64_t vocab_size, int64_t pad_token_id, bool sp, const Mesh& mesh,
                     bool deterministic = false) {
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
  const Layout output = sp ? Layout({Cut::even(1, "tp")}) : Layout();
  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
    const ParameterPtr own_weight = leaf("weight", cut(weight, rows, mesh, rank));
    VocabParallelEmbedding layer(own_weight, comm.along("tp"),
                                 {.label = "embedding",
                                  .pad_token_id = pad_token_id,
                                  .sequence_parallel = sp,
                                  .deterministic = deterministic});
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
      check_embedding(12, -1, sp, Mesh::training({.tp = tp}));
      check_embedding(13, 7, sp,
                      Mesh::training({.tp = tp}));  // padded; the pad row on a middle rank
      check_embedding(5, 0, sp, Mesh::training({.tp = tp}));  // tp 4: a rank with padding only
    }
  }
  check_embedding(13, 12, true, Mesh::training({.dp = 2, .tp = 2}));
  check_embedding(13, 7, true, Mesh::training({.tp = 3}), /*deterministic=*/true);
}

TEST_CASE("a deterministic lookup gives the same bits in float32, whatever the number of threads",
          "[tp][TP-3]") {
  const at::Tensor full = random_tensor({16, 64}, 1).to(at::kFloat);
  const at::Tensor ids = at::arange(4096, at::kLong).mul(7).remainder(16);
  const at::Tensor grad = random_tensor({4096, 64}, 2).to(at::kFloat);
  const auto gradient = [&](int threads) {
    at::set_num_threads(threads);
    const at::Tensor weight = full.clone().requires_grad_();
    look_up_own_tokens(weight, ids, 0, {.deterministic = true}).backward(grad);
    return weight.grad();
  };
  const int threads = at::get_num_threads();
  const at::Tensor golden = gradient(1);
  bool same = true;
  for (int i = 0; i < 12; ++i) same = same && gradient(4).equal(golden);
  at::set_num_threads(threads);
  CHECK(same);
}

TEST_CASE("two embeddings of one shape do not share anything", "[tp][TP-3]") {
  NoProbe nobody;
  const StepContext context{.probe = nobody};
  const Mesh mesh = Mesh::training({.tp = 2});
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
}  // namespace shardproof::tests::vocab_parallel_embedding_test
