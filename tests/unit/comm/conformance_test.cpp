// One conformance suite on every world: groups of 1, 2, 3, 4 and 7 ranks, from rank 0 or a later
// one.
#include "tests/unit/comm/conformance.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/cuda_device.h"
#include "comm/gloo_backend.h"
#include "comm/nccl_backend.h"
#include "tests/support/run_gloo_ranks.h"
#include "tests/support/run_ranks.h"

namespace shardproof::tests {
namespace {

struct Outcome {
  std::vector<std::string> problems;
  std::map<int64_t, std::vector<at::Tensor>> results;  // per global rank
  std::mutex mutex;
  std::string first() const {
    if (problems.empty()) return "";
    return fmt::format("{} problems, the first: {}", problems.size(), problems[0]);
  }
};

void run_cases(const std::vector<Case>& cases, Communicator& comm, int64_t rank, Outcome& outcome) {
  for (const Case& test : cases) {
    const at::Tensor actual = call(test, comm);
    const std::string problem = check(test, comm, actual);
    const std::lock_guard lock(outcome.mutex);
    outcome.results[rank].push_back(actual);
    if (problem.empty()) continue;
    outcome.problems.push_back(fmt::format("rank {} in {} of {}: {}: {}", rank, comm.axis(),
                                           comm.size(), describe(test), problem));
  }
}

// Runs the cases on every group of the mesh's axes.
void run_suite(void (*run_ranks)(const Mesh&, const RankFunction&), const Mesh& mesh,
               const std::vector<Case>& cases, Outcome& outcome) {
  run_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
    for (const MeshAxis& axis : mesh.axes()) run_cases(cases, comm.along(axis.name), rank, outcome);
  });
  CHECK(outcome.first() == "");
  REQUIRE(outcome.results.size() == static_cast<size_t>(mesh.world_size()));
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

TEST_CASE("every collective is right on emulated groups of every size and place",
          "[comm][emulated]") {
  const int64_t size = GENERATE(1, 2, 3, 4, 7);
  const Mesh mesh({{"dp", 2}, {"tp", size}});
  const std::vector<Case> cases = all_cases();
  Outcome first, second;
  run_suite(&run_emulated_ranks, mesh, cases, first);
  run_suite(&run_emulated_ranks, mesh, cases, second);
  int64_t different = 0;
  for (const auto& [rank, results] : first.results) {
    REQUIRE(results.size() == 2 * cases.size());
    for (size_t i = 0; i < results.size(); ++i) {
      different += same_bits(results[i], second.results.at(rank)[i]) ? 0 : 1;
    }
  }
  CHECK(different == 0);
}

TEST_CASE("every collective is right on Gloo groups of every size and place", "[comm][gloo]") {
  const Mesh mesh = GENERATE(Mesh({{"tp", 1}}), Mesh({{"tp", 2}}), Mesh({{"tp", 4}}),
                             Mesh({{"tp", 7}}), Mesh({{"dp", 2}, {"tp", 3}}));
  Outcome outcome;
  run_suite(&run_gloo_ranks, mesh, all_cases(), outcome);
}

// A group of one rank, which calls its backend nevertheless.
std::string problems_alone(const BackendFactory& make, const std::vector<Case>& cases) {
  Communicator alone("tp", {0}, 0, make("tp", {0}), nullptr);
  Outcome outcome;
  run_cases(cases, alone, 0, outcome);
  return outcome.first();
}

TEST_CASE("every collective is right on a backend of one rank", "[comm][emulated][gloo]") {
  sim::world::EmulatedWorld world(1);
  CHECK(problems_alone(world.factory(0), all_cases()) == "");
  CHECK(problems_alone(gloo_factory(make_hash_store(), 0), all_cases()) == "");
}

TEST_CASE("every collective is right on CUDA tensors of emulated ranks", "[comm][emulated][cuda]") {
  if (!why_no_cuda().empty()) {
    WARN("skipped: " << why_no_cuda());
    return;
  }
  load_cuda();
  const int64_t size = GENERATE(1, 2, 3, 4, 7);
  Outcome outcome;
  run_suite(&run_emulated_ranks, Mesh({{"tp", size}}), on_device(all_cases(), at::kCUDA), outcome);
}

TEST_CASE("every collective is right on a one-rank NCCL world, for tensors of the CPU too",
          "[comm][cuda][nccl]") {
  if (!why_no_nccl().empty()) {
    WARN("skipped: " << why_no_nccl());
    return;
  }
  const BackendFactory nccl = nccl_factory(make_hash_store(), 0, {});
  CHECK(problems_alone(nccl, on_device(all_cases(), at::kCUDA)) == "");
  CHECK(problems_alone(nccl, all_cases()) == "");
}

}  // namespace
}  // namespace shardproof::tests
