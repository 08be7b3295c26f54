// Properties of the emulated world alone: sums in rank order, refusals, waits without an end,
// reset.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "base/error.h"
#include "tests/support/ones.h"
#include "tests/support/run_ranks.h"

namespace shardproof::tests {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("messages with tags find their receivers in any order", "[comm][emulated]") {
  std::vector<double> got(2);
  run_emulated_ranks(Mesh({{"cp", 2}}), [&](MeshComm& comm, int64_t rank) {
    Communicator& cp = comm.along("cp");
    if (rank == 0) {
      PendingCollective first = cp.send_async(ones(1) * 5, 1, "a", 1);
      PendingCollective second = cp.send_async(ones(1) * 6, 1, "b", 2);
      second.wait();
      first.wait();
    } else {
      got[1] = cp.recv(ones(1), 0, "b", 2).item<double>();
      got[0] = cp.recv(ones(1), 0, "a", 1).item<double>();
    }
  });
  CHECK(got == std::vector<double>{5, 6});
}

TEST_CASE("sums are made in rank order in the stated type", "[comm][emulated]") {
  const int64_t size = 7, count = 1500;  // more than one block of the reduction
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kFloat, at::kHalf, at::kBFloat16);
  const at::Tensor all = at::sin(at::arange(size * count, at::kDouble).view({size, count}) * 1.7);
  const at::Tensor pieces = all.to(dtype);
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor golden = pieces[0].to(wide);
  for (int64_t rank = 1; rank < size; ++rank) golden = golden + pieces[rank].to(wide);
  golden = golden.to(dtype);
  std::vector<at::Tensor> sums(size), parts(size);
  run_emulated_ranks(Mesh({{"tp", size}}), [&](MeshComm& comm, int64_t rank) {
    const auto index = static_cast<size_t>(rank);
    sums[index] = comm.along("tp").all_reduce(pieces[rank], ReduceOp::kSum, "sum");
    parts[index] = comm.along("tp").reduce_scatter(pieces[rank], 0, ReduceOp::kSum, "parts",
                                                   {1, 0, 600, 400, 99, 100, 300});
  });
  for (const at::Tensor& result : sums) CHECK(at::equal(result, golden));
  CHECK(at::equal(at::cat(parts), golden));
}

TEST_CASE("NaN wins in max and min on every rank", "[comm][emulated]") {
  std::vector<at::Tensor> results(3);
  run_emulated_ranks(Mesh({{"tp", 3}}), [&](MeshComm& comm, int64_t rank) {
    at::Tensor input = ones(3) * static_cast<double>(rank);
    input[rank] = std::nan("");
    results[static_cast<size_t>(rank)] =
        at::cat({comm.along("tp").all_reduce(input, ReduceOp::kMax, "max"),
                 comm.along("tp").all_reduce(input, ReduceOp::kMin, "min")});
  });
  for (const at::Tensor& result : results) CHECK(result.isnan().all().item<bool>());
}

TEST_CASE("no result shares memory with an input, not even alone in a group", "[comm][emulated]") {
  const int64_t size = GENERATE(1, 2);
  std::vector<int64_t> shared(static_cast<size_t>(size));
  run_emulated_ranks(Mesh({{"tp", size}}), [&](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    const at::Tensor input = ones(8).view({4, 2}).requires_grad_(true);
    const std::vector<at::Tensor> results{tp.all_reduce(input, ReduceOp::kSum, "a"),
                                          tp.all_gather(input, 0, "b"),
                                          tp.reduce_scatter(input, 0, ReduceOp::kSum, "c"),
                                          tp.all_to_all(input, "d"),
                                          tp.broadcast(input, 0, "e"),
                                          tp.all_gather_async(input, 1, "f").wait()};
    for (const at::Tensor& result : results) {
      shared[static_cast<size_t>(rank)] +=
          result.storage().data() == input.storage().data() || result.requires_grad() ? 1 : 0;
    }
  });
  CHECK(shared == std::vector<int64_t>(static_cast<size_t>(size), 0));
}

TEST_CASE("calls that no world can make are refused", "[comm][emulated]") {
  const RankRuns average = try_emulated_ranks(Mesh({{"tp", 2}}), [](MeshComm& comm, int64_t) {
    comm.along("tp").all_reduce(ones(2).to(at::kLong), ReduceOp::kAvg, "tokens");
  });
  CHECK_THAT(average.error_text(0) + average.error_text(1),
             Contains("'tokens' averages a tensor of int64"));
  const RankRuns sizes = try_emulated_ranks(Mesh({{"tp", 2}}), [](MeshComm& comm, int64_t) {
    comm.along("tp").all_gather(ones(4), 0, "gather", {4, 3});
  });
  CHECK_THAT(sizes.error_text(1), Contains("rank 1 has size 4 where the sizes [4,3] say 3"));
}

TEST_CASE("a wait that cannot end is found while other ranks still run", "[comm][emulated]") {
  sim::world::EmulatedWorld world(4);  // ranks 2 and 3 make no calls
  const auto error_of = [&](int64_t rank) {
    MeshComm comm(Mesh({{"cp", 4}}), rank, world.factory(rank), nullptr);
    try {
      comm.along("cp").send(ones(2), 1 - rank, "kv");
    } catch (const Error& error) {
      return error.fact();
    }
    return std::string();
  };
  SECTION("for a rank that had ended") {
    world.rank_ended(1);
    CHECK_THAT(error_of(0), Contains("rank 1 has ended; rank 0 waits for rank 1"));
  }
  SECTION("for a rank that ends") {
    std::future<std::string> waits = std::async(std::launch::async, error_of, 0);
    while (world.call_count(0) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    world.rank_ended(1);
    CHECK_THAT(waits.get(), Contains("rank 1 has ended; rank 0 waits for rank 1"));
  }
  SECTION("in a cycle") {
    std::future<std::string> one = std::async(std::launch::async, error_of, 0);
    std::future<std::string> other = std::async(std::launch::async, error_of, 1);
    CHECK(other.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
    world.abort("hung", "the test is over");  // without effect if the cycle was found
    const std::string message = one.get();
    CHECK_THAT(message, Contains("ranks wait for each other: rank 0 waits for rank 1 in send"));
    CHECK(other.get() == message);
  }
  REQUIRE(world.failure());
  CHECK(world.failure()->ranks == std::vector<int64_t>{0, 1});
}

TEST_CASE("a world is new after reset, and older communicators are refused", "[comm][emulated]") {
  sim::world::EmulatedWorld world(2);
  const Mesh mesh({{"tp", 2}});
  MeshComm old(mesh, 0, world.factory(0), nullptr);
  Communicator& old_tp = old.along("tp");
  world.rank_threw(0, "first case failed");
  world.rank_ended(1);
  CHECK_THROWS_AS(old_tp.barrier("x"), Error);
  world.reset();
  CHECK(!world.failure());
  CHECK_THROWS_WITH(old_tp.barrier("x"), Contains("earlier case"));
  std::vector<std::thread> threads;
  std::vector<double> sums(2);
  for (int64_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      MeshComm comm(mesh, rank, world.factory(rank), nullptr);
      sums[static_cast<size_t>(rank)] =
          comm.along("tp").all_reduce(ones(1), ReduceOp::kSum, "again").item<double>();
      world.rank_ended(rank);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(sums == std::vector<double>{2, 2});
  CHECK(world.last_call(1) == "all_reduce(sum) tp[0,1] [1] float64 'again'");
  CHECK(world.call_count(1) == 1);
}

TEST_CASE("two worlds of different meshes live in one process", "[comm][emulated]") {
  std::vector<double> results(2);
  std::thread other([&] {
    run_emulated_ranks(Mesh({{"tp", 3}}), [&](MeshComm& comm, int64_t rank) {
      const at::Tensor sum_of = comm.along("tp").all_reduce(ones(1), ReduceOp::kSum, "same name");
      if (rank == 0) results[1] = sum_of.item<double>();
    });
  });
  run_emulated_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t rank) {
    const at::Tensor sum_of = comm.along("tp").all_reduce(ones(1), ReduceOp::kSum, "same name");
    if (rank == 0) results[0] = sum_of.item<double>();
  });
  other.join();
  CHECK(results == std::vector<double>{2, 3});
}

TEST_CASE("a hundred and twenty ranks meet on two cores", "[comm][emulated]") {
  std::vector<double> results(120);
  run_emulated_ranks(Mesh({{"dp", 60}, {"tp", 2}}), [&](MeshComm& comm, int64_t rank) {
    at::Tensor value = ones(8);
    for (int step = 0; step < 10; ++step) {
      value = comm.along("tp").all_reduce(value, ReduceOp::kAvg, "tp");
      value = comm.along("dp").all_reduce(value, ReduceOp::kAvg, "dp");
      value = comm.world().all_reduce(value, ReduceOp::kMax, "world");
    }
    results[static_cast<size_t>(rank)] = value[0].item<double>();
  });
  CHECK(results == std::vector<double>(120, 1.0));
}

}  // namespace
}  // namespace shardproof::tests
