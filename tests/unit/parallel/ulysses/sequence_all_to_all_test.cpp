// The exchange of one cut dim for another, against narrow and cat over the tensors of all ranks.
#include "parallel/ulysses/sequence_all_to_all.h"

#include <catch2/catch.hpp>

#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {
namespace {

using RunRanks = std::function<void(const Mesh&, const RankFunction&)>;

struct Trade {
  std::vector<int64_t> shape;  // of one rank
  int64_t scatter_dim, gather_dim;
};

at::Tensor own(const Trade& trade, int64_t rank, int64_t seed) {
  return random_tensor(trade.shape, 100 * seed + rank);
}

// Rank `rank` gets part `rank` of every rank's scatter dim, concatenated along the gather dim.
at::Tensor traded(const std::vector<at::Tensor>& all, int64_t scatter, int64_t gather,
                  int64_t rank) {
  std::vector<at::Tensor> parts;
  const auto size = static_cast<int64_t>(all.size());
  for (const at::Tensor& tensor : all) {
    const int64_t share = tensor.size(scatter) / size;
    parts.push_back(tensor.narrow(scatter, rank * share, share));
  }
  return at::cat(parts, gather);
}

// "" if all trades in one call give the golden's tensors and gradients on every rank.
std::string wrong_trades(const std::vector<Trade>& trades, int64_t size, const RunRanks& run) {
  std::vector<std::string> wrong(static_cast<size_t>(size));
  run(Mesh({{"ulysses", size}}), [&](MeshComm& comm, int64_t rank) {
    std::vector<DimTrade> inputs;
    for (size_t i = 0; i < trades.size(); ++i) {
      inputs.push_back({own(trades[i], rank, static_cast<int64_t>(i)).requires_grad_(),
                        trades[i].scatter_dim, trades[i].gather_dim});
    }
    const auto results = sequence_all_to_all(inputs, comm.along("ulysses"), "here");
    at::Tensor loss = at::zeros({}, at::kDouble);
    // The gradient of rank r's i-th result, different at each position.
    const auto grad_of = [&](size_t i, int64_t of) {
      return random_tensor(results[i].sizes(), 5000 + 100 * static_cast<int64_t>(i) + of);
    };
    for (size_t i = 0; i < trades.size(); ++i) loss = loss + (results[i] * grad_of(i, rank)).sum();
    loss.backward();
    std::string& text = wrong[static_cast<size_t>(rank)];
    for (size_t i = 0; i < trades.size(); ++i) {
      std::vector<at::Tensor> all, grads;
      for (int64_t other = 0; other < size; ++other) {
        all.push_back(own(trades[i], other, static_cast<int64_t>(i)));
        grads.push_back(grad_of(i, other));
      }
      text +=
          difference(traded(all, trades[i].scatter_dim, trades[i].gather_dim, rank).contiguous(),
                     results[i].detach(), 0);
      text += difference(traded(grads, trades[i].gather_dim, trades[i].scatter_dim, rank),
                         inputs[i].tensor.grad(), 0);
    }
  });
  std::string text;
  for (const std::string& one : wrong) text += one;
  return text;
}

}  // namespace

TEST_CASE("one and many tensors, each with its own dims, on 1 to 4 ranks", "[US-3]") {
  for (const int64_t size : {1, 2, 3, 4}) {
    INFO("U=" << size);
    const Trade heads{{2, 3, 12, 5}, 2, 1}, back{{2, 24, 1, 5}, 1, 2};
    const Trade last{{12, 2, 7}, 0, 2}, first{{3, 1, 12}, -1, 0};
    for (const RunRanks& run : {RunRanks(run_emulated_ranks), RunRanks(run_gloo_ranks)}) {
      CHECK(wrong_trades({heads}, size, run) == "");
      CHECK(wrong_trades({back}, size, run) == "");
      CHECK(wrong_trades({heads, back, last}, size, run) == "");
    }
    std::vector<DimTrade> counted_from_the_end;
    run_emulated_ranks(Mesh({{"ulysses", size}}), [&](MeshComm& comm, int64_t rank) {
      const at::Tensor x = own(first, rank, 1);
      const auto& ulysses = comm.along("ulysses");
      const at::Tensor a = sequence_all_to_all({{x, -1, 0}}, comm.along("ulysses"), "a")[0];
      const at::Tensor b = sequence_all_to_all({{x, 2, -3}}, comm.along("ulysses"), "b")[0];
      if (!at::equal(a, b) || a.size(0) != 3 * ulysses.size()) throw std::runtime_error("dims");
    });
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
  rethrow_first(try_emulated_ranks(Mesh({{"ulysses", 2}}),
                                   [&](MeshComm& comm, int64_t rank) {
                                     std::vector<DimTrade> trades;
                                     for (int64_t i = 0; i < 3; ++i)
                                       trades.push_back({random_tensor({1, 3, 4}, i), 2, 1});
                                     sequence_all_to_all(trades, comm.along("ulysses"), "t");
                                   },
                                   {&logs[0], &logs[1]}));
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
