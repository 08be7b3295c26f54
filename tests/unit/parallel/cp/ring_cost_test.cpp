// CPU time of a ring over all ranks, and of the same attention on one device. Run by name:
// unit_parallel_cp "[cost]".
#include <catch2/catch.hpp>
#include <ctime>

#include "tests/unit/parallel/cp/ring_cases.h"

namespace shardproof::tests {
namespace {

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// CPU time of all ranks for a forward and backward of causal attention over 4096 tokens.
double cpu_seconds(int64_t cp_size, ContextLayout kind) {
  std::vector<double> spent(static_cast<size_t>(cp_size));
  run_emulated_ranks(Mesh({{"cp", cp_size}}), [&](MeshComm& comm, int64_t rank) {
    const auto layout = SequenceLayout::whole(4096, cp_size, kind);
    const auto part = [&](int64_t heads, int64_t seed) {
      return sequence_shard(random_tensor({1, 4096, heads, 64}, seed).to(at::kFloat), layout, rank,
                            1);
    };
    const at::Tensor q = part(8, 1).requires_grad_(), k = part(2, 2).requires_grad_();
    const at::Tensor v = part(2, 3).requires_grad_(), grad = part(8, 4);
    const double start = thread_cpu_seconds();
    ring_attention(q, k, v, layout, comm.along("cp")).backward(grad);
    spent[static_cast<size_t>(rank)] = thread_cpu_seconds() - start;
  });
  double sum = 0;
  std::string text;
  for (const double one : spent) {
    sum += one;
    text += " " + std::to_string(one);
  }
  WARN("cp=" << cp_size << " " << name_of(kind) << ": CPU s of each rank" << text << ", sum "
             << sum);
  return sum;
}

}  // namespace

TEST_CASE("four ranks together cost at most a quarter more than one device", "[.cost][CP-1]") {
  cpu_seconds(1, ContextLayout::kZigzag);  // warms the caches
  const double one = cpu_seconds(1, ContextLayout::kZigzag);
  CHECK(cpu_seconds(4, ContextLayout::kZigzag) <= 1.25 * one);
  cpu_seconds(4, ContextLayout::kContiguous);
}

}  // namespace shardproof::tests
