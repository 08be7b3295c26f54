// The vocabulary-parallel logprob against log_softmax over the whole vocabulary.
#include "logprob/vocab_parallel_logprob.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tensor/shard.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

// A tp rank's columns of `full`; padding columns hold `padding`.
at::Tensor columns_of(const at::Tensor& full, int64_t tp_size, int64_t tp_rank, double padding) {
  const VocabRange range = vocab_range(full.size(-1), tp_size, tp_rank);
  const at::Tensor real = full.narrow(-1, std::min(range.start, full.size(-1)), range.counted);
  return at::constant_pad_nd(real, {0, range.columns - range.counted}, padding);
}

struct GoldenLogprob {
  at::Tensor logprob, grad_logits;
};

GoldenLogprob golden_logprob(const at::Tensor& logits, const at::Tensor& target,
                             const at::Tensor& grad) {
  const at::Tensor leaf = logits.detach().clone().requires_grad_();
  const at::Tensor logprob = at::log_softmax(leaf, -1).gather(-1, target.unsqueeze(-1)).squeeze(-1);
  logprob.backward(grad);
  return {logprob.detach(), leaf.grad()};
}

// Ids in every shard, including the first and the last of each.
at::Tensor targets(at::IntArrayRef shape, int64_t vocab_size) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return ((at::arange(count, at::kLong) * 7) % vocab_size).view(shape);
}

void check_logprob(const at::Tensor& logits, const at::Tensor& target, int64_t tp) {
  INFO("tp=" << tp << " vocabulary " << logits.size(-1) << " dims " << logits.dim());
  const Mesh mesh = Mesh::training({.dp = 2, .tp = tp});
  const at::Tensor grad = random_tensor(target.sizes(), 3);
  const GoldenLogprob golden = golden_logprob(logits, target, grad);
  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
    Communicator& group = comm.along("tp");
    const at::Tensor local = columns_of(logits, tp, group.rank(), 1e4);
    const at::Tensor leaf = local.clone().requires_grad_();
    const at::Tensor logprob = vocab_parallel_logprob(leaf, target, group, logits.size(-1));
    logprob.backward(grad);
    return {{"logprob", logprob.detach()},
            {"grad", leaf.grad()},
            {"logits", local},
            {"logits after", leaf.detach()}};
  });
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const NamedResults& result = results[static_cast<size_t>(rank)];
    const at::Tensor own = columns_of(golden.grad_logits, tp, mesh.coordinate("tp", rank), 0);
    CHECK(difference(golden.logprob, result.at("logprob")) == "");
    CHECK(difference(own, result.at("grad"), 1e-12, 1) == "");
    CHECK(result.at("logits").equal(result.at("logits after")));
  }
}

TEST_CASE("logprob and its gradient equal log_softmax over the whole vocabulary",
          "[logprob][LP-1][LP-2]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    for (const int64_t vocab_size :
         {12, 13, 5, 2, 1}) {  // padded; a rank with padding only; one token
      check_logprob(random_tensor({2, 5, vocab_size}, 1) * 4, targets({2, 5}, vocab_size), tp);
    }
  }
}

TEST_CASE("logits of two, one and four dims", "[logprob][LP-2]") {
  check_logprob(random_tensor({5, 10}, 1), targets({5}, 10), 3);
  check_logprob(random_tensor({10}, 1), targets({}, 10), 3);
  check_logprob(random_tensor({2, 3, 2, 10}, 1), targets({2, 3, 2}, 10), 3);
  check_logprob(random_tensor({0, 3, 10}, 1), targets({0, 3}, 10), 3);
}

TEST_CASE("gaps between logits beyond the range of exp stay exact", "[logprob][LP-1]") {
  for (const double scale : {150.0, 800.0, 1e6}) {
    check_logprob(random_tensor({2, 4, 11}, 1) * scale, targets({2, 4}, 11), 4);
  }
  // One shard is far below the others, then far above them.
  at::Tensor logits = random_tensor({1, 3, 12}, 2);
  logits.narrow(-1, 3, 3) -= 5000;
  check_logprob(logits, targets({1, 3}, 12), 4);
  logits.narrow(-1, 6, 3) += 9000;
  check_logprob(logits, targets({1, 3}, 12), 4);
}

TEST_CASE("strided logits and a strided gradient", "[logprob][LP-2]") {
  const at::Tensor logits = random_tensor({3, 4, 10}, 1);
  const at::Tensor target = targets({3, 4}, 10);
  const at::Tensor grad = random_tensor({4, 3}, 5).t();
  const GoldenLogprob golden = golden_logprob(logits, target, grad);
  const auto results =
      on_every_rank(Mesh::training({.tp = 2}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
        const at::Tensor leaf =
            columns_of(logits, 2, rank, 0).permute({2, 0, 1}).contiguous().requires_grad_();
        const at::Tensor logprob =
            vocab_parallel_logprob(leaf.permute({1, 2, 0}), target, comm.along("tp"), 10);
        logprob.backward(grad);
        return {{"logprob", logprob.detach()}, {"grad", leaf.grad().permute({1, 2, 0})}};
      });
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(difference(golden.logprob, results[rank].at("logprob")) == "");
    CHECK(difference(columns_of(golden.grad_logits, 2, static_cast<int64_t>(rank), 0),
                     results[rank].at("grad")) == "");
  }
}

TEST_CASE("lower precisions sum in float32 and give gradients in the logits' dtype",
          "[logprob][LP-1]") {
  const at::Tensor logits = random_tensor({2, 4, 300}, 1).to(at::kBFloat16);
  const at::Tensor target = targets({2, 4}, 300);
  const at::Tensor golden =
      golden_logprob(logits.to(at::kDouble), target, at::ones({2, 4}, at::kDouble)).logprob;
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const auto results =
        on_every_rank(Mesh::training({.tp = 3}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
          const at::Tensor leaf = columns_of(logits, 3, rank, 0).to(dtype).requires_grad_();
          const at::Tensor logprob = vocab_parallel_logprob(leaf, target, comm.along("tp"), 300);
          logprob.backward(at::ones({2, 4}, at::kFloat));
          return {{"logprob", logprob.detach()}, {"grad", leaf.grad()}};
        });
    for (const auto& result : results) {
      CHECK(result.at("logprob").scalar_type() == at::kFloat);
      CHECK(result.at("grad").scalar_type() == dtype);
      CHECK(difference(golden.to(at::kFloat), result.at("logprob"), 1e-5) == "");
    }
  }
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
              (whole ? full : columns_of(full, 2, rank, 0)).clone().requires_grad_();
          vocab_parallel_logprob(leaf, targets({1, 3}, 9), comm.along("tp"), 9).sum().backward();
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
    const at::Tensor leaf = columns_of(random_tensor({3, 8}, 1), 2, rank, 0).requires_grad_();
    const at::Tensor target = targets({3}, 8);
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

TEST_CASE(
    "next-token logprobs: column t scores token t, column 0 is 0, the last logits get no gradient",
    "[logprob][LP-2]") {
  const int64_t vocab_size = 10;
  const at::Tensor logits = random_tensor({2, 5, vocab_size}, 1);
  const at::Tensor ids = targets({2, 5}, vocab_size);
  const at::Tensor grad = random_tensor({2, 5}, 3);
  const at::Tensor leaf = logits.clone().requires_grad_();
  const at::Tensor scored = at::log_softmax(leaf.narrow(1, 0, 4), -1)
                                .gather(-1, ids.narrow(1, 1, 4).unsqueeze(-1))
                                .squeeze(-1);
  const at::Tensor golden = at::cat({at::zeros({2, 1}, at::kDouble), scored}, 1);
  golden.backward(grad);
  for (const int64_t tp : {1, 2, 4}) {
    const auto results = on_every_rank(
        Mesh::training({.tp = tp}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
          const at::Tensor own = columns_of(logits, tp, rank, 0).clone().requires_grad_();
          const at::Tensor out = next_token_logprobs(own, ids, comm.along("tp"), vocab_size);
          out.backward(grad);
          return {{"logprobs", out.detach()}, {"grad", own.grad()}};
        });
    for (int64_t rank = 0; rank < tp; ++rank) {
      const NamedResults& result = results[static_cast<size_t>(rank)];
      CHECK(difference(golden.detach(), result.at("logprobs")) == "");
      CHECK(difference(columns_of(leaf.grad(), tp, rank, 0), result.at("grad")) == "");
      CHECK(result.at("grad").select(1, 4).eq(0).all().item<bool>());
    }
  }
}

TEST_CASE("a sequence of one token has logprob 0 and no gradient", "[logprob][LP-2]") {
  on_every_rank(Mesh::training({.tp = 2}), [](MeshComm& comm, int64_t rank) -> NamedResults {
    const at::Tensor own = columns_of(random_tensor({2, 1, 6}, 1), 2, rank, 0).requires_grad_();
    const at::Tensor out = next_token_logprobs(own, targets({2, 1}, 6), comm.along("tp"), 6);
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
