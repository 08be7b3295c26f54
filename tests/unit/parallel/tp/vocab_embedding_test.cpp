// The vocabulary-parallel embedding with each of its options against one device.
#include "parallel/tp/vocab_embedding.h"

#include <ATen/Parallel.h>

#include <catch2/catch.hpp>

#include "parallel/tp/vocab_parallel_embedding.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests::vocab_embedding_test {
namespace {

constexpr int64_t kV = 36, kE = 5, kB = 3, kS = 12;

struct EmbeddingGolden {
  at::Tensor ids, weight, grad, y = {}, grad_weight = {};  // y [B, S, E]
};

EmbeddingGolden embedding_golden() {
  // Each rank's first and last id, every id at least once where there is room, some often.
  const at::Tensor ids = (at::arange(kB * kS, at::kLong) * 7 % kV).view({kB, kS});
  ids[0].slice(0, 0, 6).copy_(at::tensor({0, 17, 18, 35, 11, 12}, at::kLong));
  ids[1].fill_(9);
  EmbeddingGolden golden{
      .ids = ids, .weight = random_tensor({kV, kE}, 1), .grad = random_tensor({kB, kS, kE}, 2)};
  const at::Tensor weight = golden.weight.clone().requires_grad_();
  const at::Tensor y = weight.index({ids});
  y.backward(golden.grad);
  golden.y = y.detach();
  golden.grad_weight = weight.grad();
  return golden;
}

VocabEmbedding::Options embedding_options(const EmbeddingGolden& golden) {
  return {.num_embeddings = kV,
          .embedding_dim = kE,
          .dtype = at::kDouble,
          .init = filled_with(golden.weight)};
}

TEST_CASE("VocabEmbedding: reduced or reduce-scattered, deterministic or not", "[tp][TP-3]") {
  const EmbeddingGolden golden = embedding_golden();
  for (const bool deterministic : {false, true}) {
    for (const bool scattered : {false, true}) {
      on_every_group(
          {1, 2, 3, 4},
          [&](Communicator& tp) -> NamedResults {
            VocabEmbedding::Options options = embedding_options(golden);
            options.deterministic = deterministic;
            options.reduce_scatter = scattered;
            VocabEmbedding layer(options, tp);
            const at::Tensor y = layer.forward(golden.ids.t().contiguous().t());
            const auto rank = static_cast<size_t>(tp.rank());
            const at::Tensor grad = scattered ? part_at(golden.grad.transpose(0, 1), 0, rank,
                                                        static_cast<size_t>(tp.size()))
                                              : golden.grad;
            y.backward(grad);
            return {{"y", y.detach()}, {"grad", layer.weight().tensor.grad()}};
          },
          [&](const std::vector<NamedResults>& group) {
            for (size_t rank = 0; rank < group.size(); ++rank) {
              INFO("tp=" << group.size() << (deterministic ? " deterministic" : "")
                         << (scattered ? " scattered" : ""));
              const at::Tensor y =
                  scattered ? part_at(golden.y.transpose(0, 1), 0, rank, group.size()) : golden.y;
              CHECK(difference(y, group[rank].at("y")) == "");
              CHECK(difference(part_at(golden.grad_weight, 0, rank, group.size()),
                               group[rank].at("grad")) == "");
            }
          });
    }
  }
}

// Elements enough for several threads, few tokens: many gradients meet in each row.
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

TEST_CASE("VocabEmbedding: two lookups in flight do not share their masks", "[tp][TP-3]") {
  const EmbeddingGolden golden = embedding_golden();
  const at::Tensor other = golden.ids.flip(1);
  on_every_group(
      {2, 3},
      [&](Communicator& tp) -> NamedResults {
        VocabEmbedding layer(embedding_options(golden), tp);
        const at::Tensor y = layer.forward(golden.ids) - 2 * layer.forward(other);
        y.backward(golden.grad);
        return {{"y", y.detach()}, {"grad", layer.weight().tensor.grad()}};
      },
      [&](const std::vector<NamedResults>& group) {
        const at::Tensor weight = golden.weight.clone().requires_grad_();
        const at::Tensor y = weight.index({golden.ids}) - 2 * weight.index({other});
        y.backward(golden.grad);
        for (size_t rank = 0; rank < group.size(); ++rank) {
          CHECK(difference(y.detach(), group[rank].at("y")) == "");
          CHECK(difference(part_at(weight.grad(), 0, rank, group.size()), group[rank].at("grad")) ==
                "");
        }
      });
}

TEST_CASE("VocabEmbedding: no tokens at all, and what is refused", "[tp][TP-3]") {
  const EmbeddingGolden golden = embedding_golden();
  for (const int64_t tp : {1, 3}) {
    run_emulated_ranks(Mesh({{"tp", tp}}), [&](MeshComm& comm, int64_t) {
      VocabEmbedding layer(embedding_options(golden), comm.along("tp"));
      const at::Tensor none = layer.forward(at::zeros({2, 0}, at::kLong));
      const std::string high = said_by([&] { layer.forward(at::full({1, 2}, kV, at::kLong)); });
      const std::string low = said_by([&] { layer.forward(at::full({1, 2}, -1, at::kLong)); });
      if (none.sizes() != at::IntArrayRef({2, 0, kE}) ||
          !contains(high, "bad input: token id 36 is outside the vocabulary of 36") ||
          !contains(low, "token id -1 is outside")) {
        throw std::logic_error(high + " / " + low);
      }
    });
  }
  run_emulated_ranks(Mesh({{"tp", 5}}), [](MeshComm& comm, int64_t) {
    const std::string said = said_by([&] {
      VocabEmbedding layer({.num_embeddings = kV, .embedding_dim = kE}, comm.along("tp"));
    });
    if (!contains(said, "refused: num_embeddings 36 does not divide by the 5 ranks of tp")) {
      throw std::logic_error(said);
    }
  });
}

}  // namespace
}  // namespace shardproof::tests::vocab_embedding_test
