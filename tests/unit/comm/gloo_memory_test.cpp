// The count of a rank's tensor memory.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "tensor/tensor_memory.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::gloo_memory_test {
namespace {

// Makes each call of the group, synchronous and asynchronous, and drops its result.
void call_everything(Communicator& tp, int64_t elements) {
  const at::Tensor mine = at::ones({elements, 2}, at::kDouble);
  tp.all_reduce(mine, ReduceOp::kSum, "sum");
  tp.all_gather(mine, 0, "gather");
  tp.all_gather(mine, 1, "gather across");
  tp.all_gather(mine.narrow(0, 0, 1 + tp.rank()), 0, "uneven gather", {1, 2});
  tp.reduce_scatter(mine, 0, ReduceOp::kAvg, "scatter of sums");
  tp.all_to_all(mine, "exchange");
  tp.broadcast(mine, 1, "broadcast");
  tp.scatter(tp.rank() == 0 ? mine : at::Tensor(), mine.narrow(0, 0, elements / 2), 0, "scatter");
  tp.gather(mine, 0, "gather at one");
  PendingCollective gathered = tp.all_gather_async(mine, 0, "pending gather");
  PendingCollective summed = tp.reduce_scatter_async(mine + 1, 0, ReduceOp::kSum, "pending sums");
  gathered.wait();
  summed.wait();
}

TEST_CASE("what a Gloo call held is counted as dropped on the rank that made the call", "[gloo]") {
  std::vector<int64_t> left(2, -1), peaks_grew(2, -1);
  tests::run_gloo_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    TensorMemory memory;
    call_everything(tp, 1000);
    const int64_t first_peak = memory.peak_bytes();
    for (int round = 0; round < 100; ++round) call_everything(tp, 1000);
    left[static_cast<size_t>(rank)] = memory.current_bytes();
    peaks_grew[static_cast<size_t>(rank)] = memory.peak_bytes() - first_peak;
  });
  CHECK(left == std::vector<int64_t>{0, 0});
  // Peaks vary, because Gloo's own buffers may be alive or not when the rank's are.
  for (const int64_t grew : peaks_grew) CHECK(grew < 200000);
}

TEST_CASE("a Gloo call that is dropped keeps its memory until it has ended", "[gloo]") {
  std::vector<int> untouched(2, -1);
  tests::run_gloo_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t rank) {
    Communicator &tp = comm.along("tp"), &world = comm.world();
    const char* meeting = "rank 0 has dropped its call";
    if (rank == 1) world.barrier(meeting);
    { const PendingCollective dropped = tp.all_gather_async(at::ones(50000), 0, "dropped"); }
    // Rank 0's call still waits for rank 1, and these tensors would reuse its buffers' memory.
    std::vector<at::Tensor> others;
    for (int i = 0; i < 8; ++i) others.push_back(at::full(100000 - i % 2 * 50000, 3.0));
    if (rank == 0) world.barrier(meeting);
    tp.barrier("the call has ended");
    bool same = true;
    for (const at::Tensor& other : others) same = same && other.eq(3.0).all().item<bool>();
    untouched[static_cast<size_t>(rank)] = same;
  });
  CHECK(untouched == std::vector<int>{1, 1});
}

}  // namespace
}  // namespace shardproof::gloo_memory_test
