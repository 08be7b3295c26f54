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
};

using RunRanks = void (*)(const Mesh&, const RankFunction&);

void run_cases(const std::vector<Case>& cases, Communicator& comm, int64_t rank, std::mutex& mutex,
               Outcome& outcome) {
  for (const Case& test : cases) {
    const at::Tensor actual = call(test, comm);
    const std::string problem = check(test, comm, actual);
    const std::lock_guard lock(mutex);
    outcome.results[rank].push_back(actual);
    if (problem.empty()) continue;
    outcome.problems.push_back(fmt::format("rank {} in {} of {}: {}: {}", rank, comm.axis(),
                                           comm.size(), describe(test), problem));
  }
}

Outcome run_suite(RunRanks run_ranks, const Mesh& mesh, const std::vector<std::string>& axes,
                  const std::vector<Case>& cases) {
  Outcome outcome;
  std::mutex mutex;
  run_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
    for (const std::string& axis : axes) run_cases(cases, comm.along(axis), rank, mutex, outcome);
  });
  return outcome;
}

std::string first_of(const std::vector<std::string>& problems) {
  if (problems.empty()) return "";
  return fmt::format("{} problems, the first: {}", problems.size(), problems[0]);
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
  const Outcome first = run_suite(&run_emulated_ranks, mesh, {"tp", "dp"}, cases);
  CHECK(first_of(first.problems) == "");
  REQUIRE(first.results.size() == static_cast<size_t>(2 * size));

  const Outcome second = run_suite(&run_emulated_ranks, mesh, {"tp", "dp"}, cases);
  int64_t different = 0;
  for (const auto& [rank, results] : first.results) {
    REQUIRE(results.size() == 2 * cases.size());
    for (size_t i = 0; i < results.size(); ++i) {
      different += same_bits(results[i], second.results.at(rank)[i]) ? 0 : 1;
    }
  }
  CHECK(different == 0);
}

TEST_CASE("every collective is right on Gloo groups of every size", "[comm][gloo]") {
  const int64_t size = GENERATE(1, 2, 3, 4, 7);
  const Outcome outcome = run_suite(&run_gloo_ranks, Mesh({{"tp", size}}), {"tp"}, thin_cases());
  CHECK(first_of(outcome.problems) == "");
  CHECK(outcome.results.size() == static_cast<size_t>(size));
}

TEST_CASE("every form of every collective in every dtype is right on a Gloo group of 3",
          "[comm][gloo]") {
  const Outcome outcome = run_suite(&run_gloo_ranks, Mesh({{"tp", 3}}), {"tp"}, all_cases());
  CHECK(first_of(outcome.problems) == "");
}

TEST_CASE("every collective is right on Gloo groups that do not start at rank 0", "[comm][gloo]") {
  const Mesh mesh({{"dp", 2}, {"tp", 3}});
  const Outcome outcome = run_suite(&run_gloo_ranks, mesh, {"tp", "dp"}, thin_cases());
  CHECK(first_of(outcome.problems) == "");
  CHECK(outcome.results.size() == 6);
}

// A group of one rank, which calls its backend nevertheless.
std::string problems_alone(const BackendFactory& make, const std::vector<Case>& cases) {
  Communicator alone("tp", {0}, 0, make("tp", {0}), nullptr);
  Outcome outcome;
  std::mutex mutex;
  run_cases(cases, alone, 0, mutex, outcome);
  return first_of(outcome.problems);
}

TEST_CASE("every collective is right on a backend of one rank", "[comm][emulated][gloo]") {
  sim::EmulatedWorld world(1);
  CHECK(problems_alone(world.factory(0), all_cases()) == "");
  CHECK(problems_alone(gloo_factory(make_hash_store(), 0), thin_cases()) == "");
}

TEST_CASE("every collective is right on CUDA tensors of emulated ranks", "[comm][emulated][cuda]") {
  if (!why_no_cuda().empty()) {
    WARN("skipped: " << why_no_cuda());
    return;
  }
  load_cuda();
  const int64_t size = GENERATE(1, 2, 3, 4, 7);
  const Outcome outcome = run_suite(&run_emulated_ranks, Mesh({{"tp", size}}), {"tp"},
                                    on_device(all_cases(), at::kCUDA));
  CHECK(first_of(outcome.problems) == "");
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
