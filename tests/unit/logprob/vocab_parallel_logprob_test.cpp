// The vocabulary-parallel logprob against log_softmax over the whole vocabulary.
#include "logprob/vocab_parallel_logprob.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests {
namespace {

void check_logprob(const at::Tensor& logits, int64_t tp) {
  const int64_t vocab_size = logits.size(-1);
  const at::Tensor target = spread_ids(logits.sizes().slice(0, logits.dim() - 1), vocab_size);
  check_over_tp({.inputs = {logits},
                 .plain = [&](const Tensors& in) { return picked_logprob(in[0], target); },
                 .sharded =
                     [&](const Tensors& in, Communicator& group) {
                       return vocab_parallel_logprob(in[0], target, group, vocab_size);
                     }},
                tp);
}

TEST_CASE("logprob and its gradient equal log_softmax over the whole vocabulary",
          "[logprob][LP-1][LP-2]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    for (const int64_t vocab_size :
         {12, 13, 5, 2, 1}) {  // padded; a rank with padding only; one token
      check_logprob(random_tensor({2, 5, vocab_size}, 1) * 4, tp);
    }
  }
}

TEST_CASE("logits of two, one and four dims, and none", "[logprob][LP-2]") {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{5, 10}, {10}, {2, 3, 2, 10}, {0, 3, 10}}) {
    check_logprob(random_tensor(shape, 1), 3);
  }
}

TEST_CASE("gaps between logits beyond the range of exp stay exact", "[logprob][LP-1]") {
  for (const double scale : {150.0, 800.0, 1e6}) {
    check_logprob(random_tensor({2, 4, 11}, 1) * scale, 4);
  }
  // One shard is far below the others, then far above them.
  at::Tensor logits = random_tensor({1, 3, 12}, 2);
  logits.narrow(-1, 3, 3) -= 5000;
  check_logprob(logits, 4);
  logits.narrow(-1, 6, 3) += 9000;
  check_logprob(logits, 4);
}

TEST_CASE("three all_reduces forward, none backward, none where a rank holds every column",
          "[logprob][LP-2]") {
  const auto calls_with = [](bool whole) {
    std::vector<CallLog> logs(2);
    const RankRuns runs = try_emulated_ranks(
        Mesh::training({.tp = 2}),
        [whole](MeshComm& comm, int64_t rank) {
          const at::Tensor full = random_tensor({1, 3, 9}, 1);
          const at::Tensor leaf =
              (whole ? full : vocab_part(full, 2, rank)).clone().requires_grad_();
          vocab_parallel_logprob(leaf, spread_ids({1, 3}, 9), comm.along("tp"), 9).sum().backward();
        },
        {&logs[0], &logs[1]});
    REQUIRE(runs.error_text(0) == "");
    return logs[1].calls;
  };
  CHECK(calls_with(false) == std::vector<std::string>{"all_reduce logprobs max",
                                                      "all_reduce logprobs sum",
                                                      "all_reduce logprobs picked"});
  CHECK(calls_with(true).empty());
}

TEST_CASE("inference keeps nothing for a backward; by default where gradients are off",
          "[logprob][LP-2]") {
  on_every_rank(Mesh::training({.tp = 2}), [](MeshComm& comm, int64_t rank) -> NamedResults {
    Communicator& tp = comm.along("tp");
    const at::Tensor leaf = vocab_part(random_tensor({3, 8}, 1), 2, rank).requires_grad_();
    const at::Tensor target = spread_ids({3}, 8);
    const at::Tensor kept = vocab_parallel_logprob(leaf, target, tp, 8);
    const at::Tensor asked = vocab_parallel_logprob(leaf, target, tp, 8, {.inference_only = true});
    const at::NoGradGuard no_grad;
    const at::Tensor off = vocab_parallel_logprob(leaf, target, tp, 8);
    if (!kept.requires_grad() || asked.requires_grad() || off.requires_grad()) {
      throw std::logic_error("the wrong call kept a graph");
    }
    if (!kept.equal(asked) || !kept.equal(off)) throw std::logic_error("values differ");
    return {};
  });
}

TEST_CASE("a sequence of one token has logprob 0 and no gradient", "[logprob][LP-2]") {
  on_every_rank(Mesh::training({.tp = 2}), [](MeshComm& comm, int64_t rank) -> NamedResults {
    const at::Tensor own = vocab_part(random_tensor({2, 1, 6}, 1), 2, rank).requires_grad_();
    const at::Tensor out = next_token_logprobs(own, spread_ids({2, 1}, 6), comm.along("tp"), 6);
    out.backward(at::ones_like(out));
    if (!out.eq(0).all().item<bool>() || !own.grad().eq(0).all().item<bool>()) {
      throw std::logic_error("not zero");
    }
    return {};
  });
}

TEST_CASE("a target outside the vocabulary is bad input, also where padding columns would hold it",
          "[logprob][LP-2]") {
  for (const int64_t id : {-100, 10, 11}) {
    const RankRuns runs =
        try_emulated_ranks(Mesh::training({.tp = 4}), [id](MeshComm& comm, int64_t) {
          const at::Tensor logits = at::zeros({1, 1, 3}, at::kDouble);
          vocab_parallel_logprob(logits, at::full({1, 1}, id, at::kLong), comm.along("tp"), 10);
        });
    for (int64_t rank = 0; rank < 4; ++rank) {
      CHECK_THAT(runs.error_text(rank), Catch::Contains("outside the vocabulary of 10"));
    }
  }
}

TEST_CASE("vocabulary ranges cover the vocabulary once", "[logprob][SH-5]") {
  for (int64_t vocab_size = 1; vocab_size <= 13; ++vocab_size) {
    for (int64_t tp = 1; tp <= 5; ++tp) {
      int64_t counted = 0;
      for (int64_t rank = 0; rank < tp; ++rank) {
        const VocabRange range = vocab_range(vocab_size, tp, rank);
        CHECK(range.columns == vocab_range(vocab_size, tp, 0).columns);
        if (range.counted > 0) CHECK(range.start == counted);
        counted += range.counted;
      }
      CHECK(counted == vocab_size);
    }
  }
}

}  // namespace
}  // namespace shardproof::tests
