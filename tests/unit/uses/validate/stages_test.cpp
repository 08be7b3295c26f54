// Stages on ranks of an emulated world, with planted faults.
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <thread>

#include "sim/uses/validate/blame.h"
#include "sim/uses/validate/planted.h"
#include "sim/uses/validate/validate_rank.h"
#include "sim/world/emulated/emulated_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::validate;
using namespace shardproof::sim::world;

namespace {

struct StageFound {
  int64_t checks = 0, wrong = 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> messages;  // by rank and partner
  std::vector<WrongResult> evidence;
  std::vector<ValidationFinding> findings;
};

// `hosts` hosts of two ranks each.
StageFound run_stage(Stage stage, int64_t hosts, const std::string& suite, int64_t round = 0,
                     const PairingsPart& pairings = {}) {
  const int64_t size = 2 * hosts;
  const Hosts places = hosts_of(
      std::vector<std::pair<std::string, std::string>>(static_cast<size_t>(size), {"m", ""}), 2);
  StageRequest request{.stage = stage,
                       .round = round,
                       .suite = parse_suite("s.yaml", suite),
                       .host_of = places.of_rank,
                       .pairings = pairings,
                       .training = nullptr};
  const CaseSpec spec = case_of(request, {}, size);
  EmulatedWorld world(size);
  std::vector<std::string> reports(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  std::mutex mutex;
  StageFound found;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      RankEnv env;
      env.rank = rank;
      env.world_size = size;
      env.make_backend = world.factory(rank);
      env.on_call = [&](const Call& call) {
        const std::lock_guard lock(mutex);
        if (call.root >= 0) ++found.messages[{rank, call.root}];
      };
      try {
        reports[static_cast<size_t>(rank)] = validate_rank(spec, env, {});
        world.rank_ended(rank);
      } catch (const std::exception& error) {
        world.rank_threw(rank, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  INFO((world.failure() ? world.failure()->message : ""));
  REQUIRE_FALSE(world.failure());
  for (const std::string& bytes : reports) {
    const StageReport report = decode_stage_report(bytes);
    if (stage == Stage::kTimes) continue;
    found.checks += report.json.at("checks").get<int64_t>();
    found.wrong += report.json.at("wrong_checks").get<int64_t>();
    for (const auto& one : report.json.at("evidence")) {
      found.evidence.push_back(one.get<WrongResult>());
    }
  }
  found.findings = blame(stage, round, found.evidence, places);
  return found;
}

// Whether this suite's fault is blamed on host 1 alone.
void require_host1(const StageFound& found) {
  CHECK(found.wrong > 0);
  REQUIRE(found.findings.size() == 1);
  INFO(found.findings[0].message);
  CHECK(found.findings[0].hosts == std::vector<std::string>{"host1"});
}

}  // namespace

TEST_CASE("a clean world has no wrong result in any op, dtype and round", "[validate]") {
  for (const int64_t round : {0, 1}) {
    const StageFound groups = run_stage(Stage::kGroups, 2, "mesh: {dp: 2, tp: 2}", round);
    CHECK(groups.wrong == 0);
    // 4 ranks in world, dp, tp, node, rail: 9 dtypes, 2 x 5 reductions but averages of 5 dtypes,
    // and 5 movements.
    CHECK(groups.checks == 4 * 5 * (9 * 15 - 2 * 5));
    CHECK(groups.findings.empty());
    const StageFound pairs = run_stage(Stage::kPairs, 2, "seed: 3", round);
    CHECK(pairs.wrong == 0);
    CHECK(pairs.checks == 4 * 3 * 9);
  }
}

TEST_CASE("each planted pattern on a host's inputs is found and named", "[validate]") {
  const std::vector<std::pair<std::string, std::string>> patterns = {
      {"element", "element"}, {"sector", "32-byte sector"}, {"lane", "every 8th"}, {"all", "all "}};
  for (const auto& [pattern, text] : patterns) {
    for (const std::string side : {"input", "output"}) {
      INFO(pattern << " " << side);
      const StageFound found = run_stage(
          Stage::kGroups, 3,
          "sizes: [129]\ndtypes: [float32]\nfaults: [{kind: corrupt, host: 1, pattern: " + pattern +
              ", side: " + side + ", bit: 20}]");
      require_host1(found);
      CHECK(found.findings[0].pattern.find(text) != std::string::npos);
    }
  }
}

TEST_CASE("a lane in the sums alone names its host by the halves", "[validate]") {
  for (const int64_t host : {0, 2, 5}) {
    const StageFound found = run_stage(
        Stage::kGroups, 6,
        "sizes: [100]\nops: [all_reduce]\ndtypes: [float32]\nfaults: [{kind: corrupt, host: " +
            std::to_string(host) + ", pattern: lane, stride: 32, bit: 12}]");
    REQUIRE(found.findings.size() == 1);
    CHECK(found.findings[0].hosts == std::vector<std::string>{"host" + std::to_string(host)});
    CHECK(found.findings[0].pattern.find("every 32nd") != std::string::npos);
  }
}

TEST_CASE("a rank alone is named where its host's other rank is right", "[validate]") {
  const StageFound found = run_stage(
      Stage::kPairs, 3, "sizes: [64]\nfaults: [{kind: corrupt, rank: 3, pattern: sector}]");
  require_host1(found);
  CHECK(found.findings[0].ranks == std::vector<int64_t>{3});
}

TEST_CASE("a link that spoils messages is named", "[validate]") {
  const StageFound found = run_stage(
      Stage::kPairs, 4, "sizes: [64]\nfaults: [{kind: corrupt, link: [1, 3], pattern: element}]");
  CHECK(found.wrong > 0);
  REQUIRE(found.findings.size() == 1);
  CHECK(found.findings[0].link == "host1 - host3");
}

TEST_CASE("a fault that comes and goes is found", "[validate]") {
  const StageFound found =
      run_stage(Stage::kPairs, 4, "faults: [{kind: corrupt, host: 1, probability: 0.2}]");
  require_host1(found);
  const StageFound all = run_stage(Stage::kPairs, 4, "faults: [{kind: corrupt, host: 1}]");
  CHECK(found.wrong < all.wrong);
}

TEST_CASE("a fault of another stage does nothing", "[validate]") {
  const StageFound found =
      run_stage(Stage::kPairs, 2, "faults: [{kind: corrupt, host: 1, stage: groups}]");
  CHECK(found.wrong == 0);
}

TEST_CASE("times makes the trips of a part of the pairings, but of ranks left out", "[validate]") {
  const std::string suite = "times: {bytes: 64, repeats: 4}";
  // A trip is a message each way: two trips warm up, and 2 * 4 are measured.
  const StageFound all = run_stage(Stage::kTimes, 6, suite, 0, {.count = 11, .left_out = {2, 3}});
  CHECK(std::ssize(all.messages) == 10 * 9);  // 10 ranks with each other
  for (const auto& [pair, count] : all.messages) {
    INFO(pair.first << " and " << pair.second);
    CHECK(count == 20);
    CHECK(pair.first / 2 != 1);
    CHECK(pair.second / 2 != 1);
  }
  // Briefly: one trip warms up, and 2 are measured.
  const StageFound brief = run_stage(Stage::kTimes, 6, suite, 0, {.count = 5, .briefly = true});
  CHECK(std::ssize(brief.messages) == 12 * 5);
  for (const auto& [pair, count] : brief.messages) CHECK(count == 6);
}

TEST_CASE("times measures again only the pairs that are named", "[validate]") {
  const std::string suite = "times: {bytes: 64, repeats: 4}";
  const StageFound found =
      run_stage(Stage::kTimes, 6, suite, 0, {.count = 11, .again = {{{0, 5}, {2, 7}}}});
  CHECK(found.messages == std::map<std::pair<int64_t, int64_t>, int64_t>{
                              {{0, 5}, 20}, {{5, 0}, 20}, {{2, 7}, 20}, {{7, 2}, 20}});
  const PairingsPart none = {.count = 11, .again = std::vector<RankPair>{}};
  CHECK(run_stage(Stage::kTimes, 6, suite, 0, none).messages.empty());
}

TEST_CASE("times ends on every rank where messages are spoiled", "[validate]") {
  const StageFound found =
      run_stage(Stage::kTimes, 6,
                "times: {bytes: 64, repeats: 2}\nfaults: [{kind: corrupt, host: 1, pattern: all}]");
  CHECK(std::ssize(found.messages) == 12 * 11);
}

TEST_CASE("kills and hangs are faults of the case, on the host's ranks", "[validate]") {
  const Suite suite =
      parse_suite("s.yaml", "faults: [{kind: kill, host: 1, stage: pairs}, {kind: hang, rank: 0}]");
  const auto faults = world_faults(suite.faults, Stage::kPairs, {0, 0, 1, 1});
  REQUIRE(faults.size() == 3);
  CHECK(faults[0].kind == FaultKind::kKill);
  CHECK(faults[0].rank == 2);
  CHECK(faults[1].rank == 3);
  CHECK(faults[2].kind == FaultKind::kHang);
  CHECK(world_faults(suite.faults, Stage::kGroups, {0, 0, 1, 1}).size() == 1);
}
