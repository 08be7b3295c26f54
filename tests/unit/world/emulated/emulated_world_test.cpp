// Properties of the emulated world alone: sums in rank order, results hidden until wait(), reset.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

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

TEST_CASE("an average of integers is refused", "[comm][emulated]") {
  const RankRuns runs = try_emulated_ranks(Mesh({{"tp", 2}}), [](MeshComm& comm, int64_t rank) {
    comm.along("tp").all_reduce(ones(2).to(at::kLong), ReduceOp::kAvg, "tokens");
  });
  CHECK_THAT(runs.error_text(0) + runs.error_text(1),
             Contains("'tokens' averages a tensor of int64"));
}

TEST_CASE("asynchronous calls overlap others and are waited for in any order", "[comm][emulated]") {
  std::vector<double> gathered(3), reduced(3);
  run_emulated_ranks(Mesh({{"tp", 3}}), [&](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    at::Tensor input = ones(2) * static_cast<double>(rank + 1);
    PendingCollective gather = tp.all_gather_async(input, 0, "gather");
    PendingCollective reduce = tp.all_reduce_async(input, ReduceOp::kSum, "reduce");
    sum(tp, "between");
    const auto index = static_cast<size_t>(rank);
    reduced[index] = reduce.wait().sum().item<double>();  // not in the order of the calls
    gathered[index] = gather.wait().sum().item<double>();
  });
  CHECK(gathered == std::vector<double>{12, 12, 12});
  CHECK(reduced == std::vector<double>{12, 12, 12});
}

TEST_CASE("c10d's own calls hide the result until wait() and bump the version counter",
          "[comm][emulated]") {
  std::vector<double> early(2), late(2);
  std::vector<int64_t> bumps(2);
  sim::EmulatedWorld world(2);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<size_t>(rank);
      auto backend = world.factory(rank)("pair", {0, 1});
      std::vector<at::Tensor> tensors{ones(2) * static_cast<double>(rank + 1)};
      const auto version = tensors[0]._version();
      auto work = backend->allreduce(tensors);
      auto barrier = backend->barrier();
      barrier->wait();  // both ranks have called, so the sum exists
      early[index] = tensors[0][0].item<double>();
      work->wait();
      late[index] = tensors[0][0].item<double>();
      bumps[index] = tensors[0]._version() > version ? 1 : 0;
      world.rank_ended(rank);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK((std::isnan(early[0]) && std::isnan(early[1])));
  CHECK(late == std::vector<double>{3, 3});
  CHECK(bumps == std::vector<int64_t>{1, 1});
}

TEST_CASE("a world is new after reset, and older communicators are refused", "[comm][emulated]") {
  sim::EmulatedWorld world(2);
  const Mesh mesh({{"tp", 2}});
  std::unique_ptr<MeshComm> old = std::make_unique<MeshComm>(mesh, 0, world.factory(0), nullptr);
  Communicator& old_tp = old->along("tp");
  world.rank_threw(0, "first case failed");
  world.rank_ended(1);
  CHECK_THROWS_AS(sum(old_tp, "x"), Error);
  world.reset();
  CHECK(!world.failure());
  CHECK_THROWS_WITH(sum(old_tp, "x"), Contains("earlier case"));
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

TEST_CASE("the ranks that hold the same repeated part are one group", "[comm][emulated]") {
  const Mesh mesh({{"dp", 2}, {"tp", 4}});
  std::vector<std::vector<int64_t>> groups(8);
  run_emulated_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
    Communicator& repeats = comm.along("tp%2");
    groups[static_cast<size_t>(rank)] = repeats.ranks();
    sum(repeats, "kv heads");
  });
  CHECK(groups[1] == std::vector<int64_t>{0, 1});
  CHECK(groups[6] == std::vector<int64_t>{6, 7});
}

}  // namespace
}  // namespace shardproof::tests
