// The exchange of one cut dim for another, against narrow and cat over the tensors of all ranks.
#include "parallel/ulysses/sequence_all_to_all.h"

#include <catch2/catch.hpp>

#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests {
namespace {

struct Trade {
  std::vector<int64_t> shape;  // of one rank
  int64_t scatter_dim, gather_dim;

  at::Tensor of_rank(int64_t rank) const { return random_tensor(shape, shape[0] + 100 * rank); }
  // Part `rank` of every rank's scatter dim, concatenated along the gather dim.
  at::Tensor traded(int64_t ranks, int64_t rank) const {
    std::vector<at::Tensor> parts;
    for (int64_t from = 0; from < ranks; ++from) {
      parts.push_back(of_rank(from).chunk(ranks, scatter_dim)[static_cast<size_t>(rank)]);
    }
    return at::cat(parts, gather_dim);
  }
};

}  // namespace

TEST_CASE("many tensors, each with its own dims, on 1 to 4 ranks", "[US-3]") {
  const std::vector<Trade> trades = {{{2, 3, 12, 5}, 2, 1},
                                     {{2, 24, 1, 5}, 1, 2},
                                     {{12, 2, 7}, 0, 2},
                                     {{3, 1, 12}, -1, 0},
                                     {{3, 1, 12}, 2, -3}};
  const auto trade_all = [&](MeshComm& comm, int64_t rank) -> NamedResults {
    std::vector<DimTrade> inputs;
    for (const Trade& trade : trades) {
      inputs.push_back({trade.of_rank(rank).requires_grad_(), trade.scatter_dim, trade.gather_dim});
    }
    const auto outs = sequence_all_to_all(inputs, comm.along("ulysses"), "here");
    // Each result is its own gradient, which must come back as the input.
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const at::Tensor& out : outs) loss = loss + (out * out.detach()).sum();
    loss.backward();
    NamedResults results;
    for (size_t i = 0; i < trades.size(); ++i) {
      results["out " + std::to_string(i)] = outs[i].detach();
      results["grad " + std::to_string(i)] = inputs[i].tensor.grad();
    }
    return results;
  };
  for (const World world : {World::kEmulated, World::kGloo}) {
    for (const int64_t size : {1, 2, 3, 4}) {
      const auto results = on_every_rank_of(world, Mesh({{"ulysses", size}}), trade_all);
      for (int64_t rank = 0; rank < size; ++rank) {
        for (size_t i = 0; i < trades.size(); ++i) {
          INFO("trade " << i << " on rank " << rank << " of " << size);
          const NamedResults& found = results[static_cast<size_t>(rank)];
          CHECK(found.at("out " + std::to_string(i)).equal(trades[i].traded(size, rank)));
          CHECK(found.at("grad " + std::to_string(i)).equal(trades[i].of_rank(rank)));
        }
      }
    }
  }
}

TEST_CASE("the way back undoes the way there, for every dtype", "[US-3]") {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kLong}) {
    run_emulated_ranks(Mesh({{"ulysses", 3}}), [&](MeshComm& comm, int64_t rank) {
      Communicator& ulysses = comm.along("ulysses");
      const at::Tensor x = (random_tensor({2, 4, 6}, rank) * 100).to(dtype).transpose(0, 1);
      const at::Tensor there = sequence_all_to_all({{x, 2, 0}}, ulysses, "there")[0];
      const at::Tensor back = sequence_all_to_all({{there, 0, 2}}, ulysses, "back")[0];
      if (!at::equal(back, x)) throw std::runtime_error("not undone");
    });
  }
}

TEST_CASE("the next exchange starts before the last one is waited for", "[US-3]") {
  struct Log final : CallListener {
    void before_call(const Call& call) override { events.push_back("call " + call.label); }
    void before_wait(const Call& call) override { events.push_back("wait " + call.label); }
    std::vector<std::string> events;
  };
  std::vector<Log> logs(2);
  const RankFunction exchange = [](MeshComm& comm, int64_t) {
    sequence_all_to_all(std::vector<DimTrade>(3, {at::ones({1, 3, 4}), 2, 1}),
                        comm.along("ulysses"), "t");
  };
  rethrow_first(try_emulated_ranks(Mesh({{"ulysses", 2}}), exchange, {&logs[0], &logs[1]}));
  CHECK(logs[1].events == std::vector<std::string>{"call t 0 forward", "call t 1 forward",
                                                   "wait t 0 forward", "call t 2 forward",
                                                   "wait t 1 forward", "wait t 2 forward"});
}

TEST_CASE("a result that nothing uses sends zeros back, and nobody waits", "[US-3]") {
  std::vector<at::Tensor> grads(2);
  run_emulated_ranks(Mesh({{"ulysses", 2}}), [&](MeshComm& comm, int64_t rank) {
    const at::Tensor a = random_tensor({1, 3, 4}, rank).requires_grad_();
    const at::Tensor b = random_tensor({1, 3, 4}, 9 + rank).requires_grad_();
    const auto out = sequence_all_to_all({{a, 2, 1}, {b, 2, 1}}, comm.along("ulysses"), "t");
    (rank == 0 ? out[0] : out[1]).sum().backward();
    grads[static_cast<size_t>(rank)] = at::cat({a.grad(), b.grad()});
  });
  for (const at::Tensor& grad : grads) {
    // Rank 0 used its half of a, and rank 1 its half of b.
    CHECK(at::equal(grad[0].narrow(1, 0, 2), at::ones({3, 2}, at::kDouble)));
    CHECK(grad[0].narrow(1, 2, 2).ne(0).sum().item<int64_t>() == 0);
    CHECK(grad[1].narrow(1, 0, 2).ne(0).sum().item<int64_t>() == 0);
    CHECK(at::equal(grad[1].narrow(1, 2, 2), at::ones({3, 2}, at::kDouble)));
  }
}

TEST_CASE("parts that would be uneven are refused with the numbers", "[US-3]") {
  const auto runs = try_emulated_ranks(Mesh({{"ulysses", 3}}), [](MeshComm& comm, int64_t) {
    sequence_all_to_all({{at::zeros({1, 2, 6, 4}), 2, 1}, {at::zeros({1, 2, 4, 4}), 2, 1}},
                        comm.along("ulysses"), "t");
  });
  for (int64_t rank = 0; rank < 3; ++rank) {
    CHECK_THAT(runs.error_text(rank),
               Catch::Contains("dim 2 of tensor 1 has 4 entries, which 3 Ulysses ranks"));
  }
}

TEST_CASE("a backward after the communicator has ended is an error", "[US-3]") {
  const auto said = backward_after_the_end(Mesh({{"ulysses", 2}}), [](MeshComm& comm, int64_t) {
    const at::Tensor x = at::ones({1, 2, 2}).requires_grad_();
    return sequence_all_to_all({{x, 2, 1}}, comm.along("ulysses"), "here")[0];
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::Contains("the communicator brief.ulysses[0,1] has ended"));
  }
}

}  // namespace shardproof::tests
