// The emulated world reports failures at once, with ranks, calls and labels.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <catch2/catch.hpp>
#include <thread>

#include "base/error.h"
#include "tests/support/ones.h"
#include "tests/support/run_ranks.h"

namespace shardproof::tests {
namespace {

using Catch::Matchers::Contains;

std::vector<int64_t> ranks_with(const RankRuns& runs, const std::string& code) {
  std::vector<int64_t> out;
  for (size_t rank = 0; rank < runs.errors.size(); ++rank) {
    if (runs.error_code(static_cast<int64_t>(rank)) == code)
      out.push_back(static_cast<int64_t>(rank));
  }
  return out;
}

// Rank 2 of three makes another call than ranks 0 and 1.
RankRuns disagree(const std::function<void(Communicator&)>& usual,
                  const std::function<void(Communicator&)>& odd) {
  return try_emulated_ranks(Mesh({{"tp", 3}}), [&](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    sum(tp, "before");
    (rank == 2 ? odd : usual)(tp);
    sum(tp, "after");
  });
}

void check_disagreement(const RankRuns& runs, const std::vector<std::string>& words) {
  REQUIRE(runs.failure);
  CHECK(runs.failure->code == "disagreement");
  REQUIRE(runs.failure->ranks.size() == 2);
  CHECK(runs.failure->ranks[1] == 2);
  CHECK(ranks_with(runs, "disagreement") == runs.failure->ranks);
  CHECK(ranks_with(runs, "aborted").size() == 1);
  for (const std::string& word : words) CHECK_THAT(runs.failure->message, Contains(word));
  CHECK_THAT(runs.failure->message, Contains("Rank 2: ") && Contains("call 1 of tp[0,1,2]"));
}

TEST_CASE("a different op, reduce op, shape, dtype, root, dim or label is named with both ranks",
          "[comm][emulated]") {
  const auto usual = [](Communicator& tp) { sum(tp, "layer 3 forward"); };
  SECTION("op") {
    check_disagreement(disagree(usual, [](Communicator& tp) { tp.all_gather(ones(4), 0, "odd"); }),
                       {"op all_reduce(sum) against all_gather", "'layer 3 forward'", "'odd'"});
  }
  SECTION("reduce op") {
    check_disagreement(disagree(usual,
                                [](Communicator& tp) {
                                  tp.all_reduce(ones(4), ReduceOp::kMax, "layer 3 forward");
                                }),
                       {"reduce op sum against max", "all_reduce(max)"});
  }
  SECTION("shape") {
    check_disagreement(disagree(usual, [](Communicator& tp) { sum(tp, "layer 3 forward", 5); }),
                       {"shape [4] against [5]"});
  }
  SECTION("shape with as many elements") {
    check_disagreement(
        disagree(usual,
                 [](Communicator& tp) {
                   tp.all_reduce(ones(4).view({2, 2}), ReduceOp::kSum, "layer 3 forward");
                 }),
        {"shape [4] against [2,2]"});
  }
  SECTION("dtype") {
    check_disagreement(disagree(usual,
                                [](Communicator& tp) {
                                  tp.all_reduce(ones(4).to(at::kFloat), ReduceOp::kSum,
                                                "layer 3 forward");
                                }),
                       {"dtype float64 against float32"});
  }
  SECTION("label: two calls of one shape in another order") {
    check_disagreement(disagree(usual, [](Communicator& tp) { sum(tp, "layer 4 forward"); }),
                       {"label 'layer 3 forward' against 'layer 4 forward'"});
  }
  SECTION("root") {
    check_disagreement(disagree([](Communicator& tp) { tp.broadcast(ones(4), 0, "b"); },
                                [](Communicator& tp) { tp.broadcast(ones(4), 1, "b"); }),
                       {"root 0 against 1"});
  }
  SECTION("dim") {
    const at::Tensor square = at::ones({3, 3}, at::kDouble);
    check_disagreement(disagree([&](Communicator& tp) { tp.all_gather(square, 0, "g"); },
                                [&](Communicator& tp) { tp.all_gather(square, 1, "g"); }),
                       {"dim 0 against 1"});
  }
  SECTION("uneven sizes") {
    check_disagreement(disagree(
                           [](Communicator& tp) {
                             tp.reduce_scatter(ones(6), 0, ReduceOp::kSum, "r", {1, 2, 3});
                           },
                           [](Communicator& tp) {
                             tp.reduce_scatter(ones(6), 0, ReduceOp::kSum, "r", {3, 2, 1});
                           }),
                       {"sizes [1,2,3] against [3,2,1]"});
  }
  SECTION("all_to_all splits") {
    check_disagreement(disagree(
                           [](Communicator& tp) {
                             tp.all_to_all(ones(3), "a", {1, 1, 1}, {1, 1, 1});
                           },
                           [](Communicator& tp) {
                             tp.all_to_all(ones(3), "a", {1, 1, 1}, {2, 1, 1});
                           }),
                       {"sends 1 rows to rank 2, which expects"});
  }
}

TEST_CASE("sizes that do not fit the caller's own tensor are refused before any call",
          "[comm][emulated]") {
  const RankRuns runs = try_emulated_ranks(Mesh({{"tp", 2}}), [](MeshComm& comm, int64_t rank) {
    comm.along("tp").all_gather(ones(4), 0, "gather", {4, 3});
  });
  CHECK_THAT(runs.error_text(1), Contains("rank 1 has size 4 where the sizes [4,3] say 3"));
}

TEST_CASE("ranks that wait for each other over two groups are a deadlock with both calls",
          "[comm][emulated]") {
  const Mesh mesh({{"dp", 2}, {"tp", 2}});
  const RankRuns runs = try_emulated_ranks(mesh, [](MeshComm& comm, int64_t rank) {
    // dp pairs (0,2) (1,3), tp pairs (0,1) (2,3): 0 -> 1 -> 3 -> 2 -> 0
    if (rank == 0 || rank == 3) sum(comm.along("tp"), "tp first");
    sum(comm.along("dp"), "dp");
    if (rank == 1 || rank == 2) sum(comm.along("tp"), "tp last");
  });
  REQUIRE(runs.failure);
  CHECK(runs.failure->code == "deadlock");
  CHECK(runs.failure->ranks == std::vector<int64_t>{0, 1, 2, 3});
  CHECK_THAT(
      runs.failure->message,
      Contains("rank 0 waits for rank 1 in all_reduce(sum) tp[0,1] [4] float64 'tp first'") &&
          Contains("rank 1 waits for rank 3 in all_reduce(sum) dp[1,3] [4] float64 'dp'"));
  CHECK(ranks_with(runs, "deadlock").size() == 4);
}

TEST_CASE("a rank that returns while another waits for it is a deadlock at once",
          "[comm][emulated]") {
  const RankRuns runs = try_emulated_ranks(Mesh({{"tp", 3}}), [](MeshComm& comm, int64_t rank) {
    sum(comm.along("tp"), "step 0");
    if (rank != 2) sum(comm.along("tp"), "step 1");
  });
  REQUIRE(runs.failure);
  CHECK(runs.failure->code == "deadlock");
  CHECK_THAT(runs.failure->message, Contains("rank 2 has ended") && Contains("step 1"));
  CHECK(runs.error_text(2) == "");
  CHECK(runs.error_text(0) != "");
}

TEST_CASE("waiting for a rank that has ended is found while other ranks still run",
          "[comm][emulated]") {
  sim::EmulatedWorld world(4);  // ranks 2 and 3 make no calls
  const Mesh mesh({{"dp", 2}, {"tp", 2}});
  SECTION("it had ended before") {
    world.rank_ended(1);
    MeshComm comm(mesh, 0, world.factory(0), nullptr);
    CHECK_THROWS_WITH(
        sum(comm.along("tp"), "too late"),
        Contains("rank 1 has ended; rank 0 waits for rank 1") && Contains("too late"));
  }
  SECTION("it ends later") {
    std::string message;
    std::thread rank_0([&] {
      MeshComm comm(mesh, 0, world.factory(0), nullptr);
      try {
        sum(comm.along("tp"), "too early");
      } catch (const Error& error) {
        message = error.fact();
      }
    });
    while (world.call_count(0) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    world.rank_ended(1);
    rank_0.join();
    CHECK_THAT(message, Contains("rank 1 has ended; rank 0 waits for rank 1"));
  }
  REQUIRE(world.failure());
  CHECK(world.failure()->ranks == std::vector<int64_t>{0, 1});
}

TEST_CASE("a cycle of waits is found while another rank still runs", "[comm][emulated]") {
  sim::EmulatedWorld world(3);  // rank 2 makes no calls
  std::vector<std::string> messages(2);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      MeshComm comm(Mesh({{"cp", 3}}), rank, world.factory(rank), nullptr);
      try {
        comm.along("cp").send(ones(2), 1 - rank, "kv");  // both send first
      } catch (const Error& error) {
        messages[static_cast<size_t>(rank)] = error.fact();
      }
    });
  }
  for (int waited_ms = 0; !world.failure() && waited_ms < 5000; ++waited_ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::optional<sim::Finding> found = world.failure();
  world.abort("hung", "the test is over");  // without effect if the cycle was found
  for (std::thread& thread : threads) thread.join();
  REQUIRE(found);
  CHECK(found->code == "deadlock");
  CHECK(found->ranks == std::vector<int64_t>{0, 1});
  CHECK_THAT(messages[0], Contains("ranks wait for each other: rank 0 waits for rank 1 in send"));
  CHECK(messages[0] == messages[1]);
}

TEST_CASE("a rank that throws ends the others, wherever they are", "[comm][emulated]") {
  const RankRuns runs = try_emulated_ranks(Mesh({{"tp", 4}}), [](MeshComm& comm, int64_t rank) {
    sum(comm.along("tp"), "step 0");
    if (rank == 1) throw std::runtime_error("layer 7 is on fire");
    for (int i = 0; i < 1000; ++i) sum(comm.along("tp"), "step 1");
  });
  REQUIRE(runs.failure);
  CHECK(runs.failure->code == "threw");
  CHECK(runs.failure->ranks == std::vector<int64_t>{1});
  CHECK_THAT(runs.failure->message, Contains("rank 1 threw: layer 7 is on fire"));
  CHECK(ranks_with(runs, "aborted") == std::vector<int64_t>{0, 2, 3});
  CHECK_THAT(runs.error_text(3), Contains("ended because rank 1 ended as threw"));
  CHECK(runs.error_text(1) == "layer 7 is on fire");
}

// Makes a call in the backward, with another label on the odd rank.
struct SumInBackward : torch::autograd::Function<SumInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            int64_t group, bool odd) {
    context->saved_data["group"] = group;
    context->saved_data["odd"] = odd;
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    auto* group = reinterpret_cast<Communicator*>(context->saved_data["group"].toInt());
    const bool odd = context->saved_data["odd"].toBool();
    return {group->all_reduce(grads[0], ReduceOp::kSum, odd ? "odd backward" : "backward"), {}, {}};
  }
};

TEST_CASE("a failure inside backward keeps its kind and names the calls", "[comm][emulated]") {
  const RankRuns runs = try_emulated_ranks(Mesh({{"tp", 2}}), [](MeshComm& comm, int64_t rank) {
    const at::Tensor x = ones(3).requires_grad_(true);
    Communicator& tp = comm.along("tp");
    SumInBackward::apply(x, reinterpret_cast<int64_t>(&tp), rank == 1).sum().backward();
  });
  CHECK(ranks_with(runs, "disagreement") == std::vector<int64_t>{0, 1});
  CHECK_THAT(runs.error_text(0), Contains("label 'backward' against 'odd backward'"));
}

TEST_CASE("a message that nobody takes is a deadlock that names both ends", "[comm][emulated]") {
  const RankRuns runs = try_emulated_ranks(Mesh({{"cp", 2}}), [](MeshComm& comm, int64_t rank) {
    Communicator& cp = comm.along("cp");
    cp.send(ones(2), 1 - rank, rank == 0 ? "kv of 0" : "kv of 1");  // both send first
    cp.recv(ones(2), 1 - rank, "kv");
  });
  REQUIRE(runs.failure);
  CHECK(runs.failure->code == "deadlock");
  CHECK_THAT(runs.failure->message, Contains("rank 0 waits for rank 1 in send to rank 1") &&
                                        Contains("'kv of 0'") && Contains("'kv of 1'"));
}

TEST_CASE("a message of another shape than awaited is a disagreement", "[comm][emulated]") {
  const RankRuns runs = try_emulated_ranks(Mesh({{"cp", 2}}), [](MeshComm& comm, int64_t rank) {
    if (rank == 0)
      comm.along("cp").send(ones(2), 1, "kv");
    else
      comm.along("cp").recv(ones(3), 0, "kv");
  });
  REQUIRE(runs.failure);
  CHECK(runs.failure->code == "disagreement");
  CHECK_THAT(runs.failure->message, Contains("shape [2] against [3]"));
}

TEST_CASE("a call that nobody waited for is found when its rank ends", "[comm][emulated]") {
  const RankRuns runs = try_emulated_ranks(Mesh({{"tp", 2}}), [](MeshComm& comm, int64_t rank) {
    if (rank == 1) return;
    const PendingCollective dropped =
        comm.along("tp").all_reduce_async(ones(2), ReduceOp::kSum, "grad bucket 0");
  });
  REQUIRE(runs.failure);
  CHECK(runs.failure->code == "never_waited");
  CHECK_THAT(runs.failure->message, Contains("rank 0 started all_reduce(sum)") &&
                                        Contains("grad bucket 0") && Contains("never waited"));
}

}  // namespace
}  // namespace shardproof::tests
