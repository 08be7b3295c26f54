// How the system schedules the threads of a rank over Gloo.
#include <sched.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "tests/support/run_gloo_ranks.h"

namespace shardproof::gloo_threads_test {
namespace {

int64_t count_of_threads(int policy) {
  int64_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    count += ::sched_getscheduler(std::stoi(task.path().filename().string())) == policy;
  }
  return count;
}

TEST_CASE("Gloo's event loops alone are batch threads, one for each rank", "[gloo]") {
  REQUIRE(count_of_threads(SCHED_BATCH) == 0);
  int64_t loops = 0, others = 0;
  tests::run_gloo_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t rank) {
    comm.along("tp").barrier("both have a device");
    if (rank == 0) loops = count_of_threads(SCHED_BATCH);
    if (rank == 0) others = count_of_threads(SCHED_OTHER);
    comm.along("tp").barrier("both still have it");
  });
  CHECK(loops == 2);
  CHECK(others >= 5);  // of the test, of both ranks, and of Gloo for the calls of each
}

}  // namespace
}  // namespace shardproof::gloo_threads_test
