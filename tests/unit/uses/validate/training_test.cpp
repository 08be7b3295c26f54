#include "sim/uses/validate/training.h"

#include <catch2/catch.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "sim/uses/validate/groups.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::validate;
using namespace shardproof::sim::world;

namespace {

constexpr int64_t kWorldSize = 4;  // on two hosts

Hosts two_hosts() {
  return hosts_of(std::vector<std::pair<std::string, std::string>>(kWorldSize, {"machine", ""}), 2);
}

// A run in which every rank has the digests of `x` and, after it, `y`.
RotatedRun run_at(int64_t shift) {
  RotatedRun run{.shift = shift, .matches = true};
  for (int64_t rank = 0; rank < kWorldSize; ++rank) {
    run.digests.push_back({{"x", "x" + std::to_string(rank)}, {"y", "y" + std::to_string(rank)}});
  }
  return run;
}

// The same when process 2 spoils x, and y is wrong everywhere after it.
RotatedRun spoiled_at(int64_t shift, bool seen_by_judge) {
  RotatedRun run = run_at(shift);
  const int64_t rank = process_of(2, -shift, kWorldSize);
  run.digests[static_cast<size_t>(rank)][0].second = "spoiled";
  for (auto& digests : run.digests) digests[1].second += "'";
  run.matches = !seen_by_judge;
  if (seen_by_judge) run.wrong_ranks = {rank};
  run.verdict = seen_by_judge ? "mismatch" : "";
  return run;
}

}  // namespace

TEST_CASE("equal runs have no finding", "[validate]") {
  CHECK(judge_rotations("case", {run_at(0), run_at(0), run_at(2)}, two_hosts(), 0).empty());
}

TEST_CASE("wrong digests that follow a host condemn it", "[validate]") {
  for (const bool seen : {false, true}) {
    const auto findings = judge_rotations(
        "case", {run_at(0), run_at(0), spoiled_at(1, seen), spoiled_at(2, seen), run_at(0)},
        two_hosts(), 0);
    REQUIRE(findings.size() == 1);
    CHECK(findings[0].hosts == std::vector<std::string>{"host1"});
    CHECK(findings[0].ranks == std::vector<int64_t>{2});
    CHECK(findings[0].kind == (seen ? FindingKind::kValues : FindingKind::kDigest));
  }
}

TEST_CASE("a host that spoils every run is named by the judge's ranks", "[validate]") {
  const auto findings = judge_rotations(
      "case", {spoiled_at(0, true), spoiled_at(0, true), spoiled_at(2, true)}, two_hosts(), 0);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].hosts == std::vector<std::string>{"host1"});
  CHECK(findings[0].kind == FindingKind::kValues);
}

TEST_CASE("wrong values that stay with a rank condemn the code", "[validate]") {
  std::vector<RotatedRun> runs = {run_at(0), run_at(0), run_at(1), run_at(2)};
  for (RotatedRun& run : runs) {
    run.matches = false;
    run.verdict = "mismatch";
    run.wrong_ranks = {3};
  }
  const auto findings = judge_rotations("case", runs, two_hosts(), 0);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].hosts.empty());
  CHECK(findings[0].ranks == std::vector<int64_t>{3});
  CHECK(findings[0].message.find("the code") != std::string::npos);
}

TEST_CASE("the first tensor that deviates counts, not those that follow from it", "[validate]") {
  const auto deviations = deviations_of({run_at(0), run_at(0), spoiled_at(1, false)});
  CHECK(deviations[0].empty());
  REQUIRE(deviations[2].size() == 2);
  CHECK(deviations[2][0].tensor == "x");
  CHECK(deviations[2][0].ranks == std::vector<int64_t>{1});
}

TEST_CASE("a rotation moves every rank and comes round", "[validate]") {
  CHECK(process_of(3, 2, 4) == 1);
  for (int64_t rank = 0; rank < 5; ++rank) {
    CHECK(process_of(process_of(rank, 3, 5), -3, 5) == rank);
  }
}

TEST_CASE("the calls of a rotated rank have the numbers of the processes", "[validate]") {
  RankEnv env;
  env.rank = 3;
  env.world_size = 4;
  std::vector<int64_t> made;
  env.make_backend = [&made](const std::string&, const std::vector<int64_t>& ranks) {
    made = ranks;
    return c10::intrusive_ptr<c10d::Backend>();
  };
  Call heard;
  env.on_call = [&heard](const Call& call) { heard = call; };
  const RankEnv other = placed(env, rotation_of({0, 1, 2, 3}, 2));
  CHECK(other.rank == 1);
  other.make_backend("tp", {0, 1});
  CHECK(made == std::vector<int64_t>{2, 3});
  Call call{.rank = 1, .group = "tp[0,1]"};
  call.group_ranks = std::make_shared<const std::vector<int64_t>>(std::vector<int64_t>{0, 1});
  other.on_call(call);
  CHECK(heard.rank == 3);
  CHECK(heard.group == "tp[2,3]");
  CHECK(*heard.group_ranks == std::vector<int64_t>{2, 3});
}

TEST_CASE("of several hosts the one that other stages name is wrong", "[validate]") {
  const ValidationFinding several{.kind = FindingKind::kValues, .hosts = {"a", "b", "c"}};
  const auto other = [](const std::string& host) {
    return ValidationFinding{.stage = Stage::kPairs, .kind = FindingKind::kValues, .hosts = {host}};
  };
  CHECK(narrowed(several, {other("b")}).hosts == std::vector<std::string>{"b"});
  CHECK(narrowed(several, {other("b"), other("b")}).hosts == std::vector<std::string>{"b"});
  CHECK(narrowed(several, {other("d")}).hosts == several.hosts);
  CHECK(narrowed(several, {other("a"), other("b")}).hosts == several.hosts);
  CHECK(narrowed(several, {}).hosts == several.hosts);
}
