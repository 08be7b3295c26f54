#include "sim/uses/validate/suite.h"

#include <catch2/catch.hpp>

#include "tests/support/said_by.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::validate;

namespace {

std::string complaint(const std::string& text) {
  return tests::told_by(ErrorKind::kBadInput, [&] { parse_suite("s.yaml", text); });
}

}  // namespace

TEST_CASE("an empty suite is the defaults", "[validate]") {
  const Suite suite = parse_suite("s.yaml", "seed: 4\n");
  CHECK(suite.seed == 4);
  CHECK(suite.stages.size() == 5);
  CHECK(suite.ops.empty());
  CHECK(suite.faults.empty());
}

TEST_CASE("a suite goes to the ranks and back", "[validate]") {
  const Suite suite = parse_suite("s.yaml", R"(
seed: 7
sizes: [5, 9]
ops: [all_reduce, all_to_all]
dtypes: [bfloat16]
mesh: {dp: 2, tp: 3}
pairs: {rounds: 3}
times: {bytes: 64, repeats: 2}
faults: [{kind: corrupt, link: [0, 2], pattern: lane, stride: 4, probability: 0.5, side: output},
         {kind: clock, host: 1, seconds: -3}, {kind: cut, host: 0, heal_s: 2}]
world: {nodes: 2}
)");
  const nlohmann::json sent = suite;
  const auto back = nlohmann::json::parse(sent.dump()).get<Suite>();
  CHECK(nlohmann::json(back) == sent);
  CHECK(back.mesh == std::vector<std::pair<std::string, int64_t>>{{"dp", 2}, {"tp", 3}});
  CHECK(back.faults[0].link == std::vector<int64_t>{0, 2});
  CHECK(back.faults[0].pattern == PlantedPattern::kLane);
  CHECK(back.faults[1].seconds == -3);
  CHECK(back.faults[2].heal_s == 2);
}

TEST_CASE("what is wrong in a suite is said with line and column", "[validate]") {
  CHECK(complaint("sead: 4\n") == "s.yaml:1:1: 'sead' is not a key here; did you mean seed?");
  CHECK(complaint("rounds: 0\n").find("s.yaml:1:9: rounds is 0; write an integer from 1") == 0);
  CHECK(complaint("stages: [pears]\n").find("'pears' is unknown; known are environment") !=
        std::string::npos);
  CHECK(complaint("faults: [{kind: corrupt}]\n").find("one of host, rank and link") !=
        std::string::npos);
  CHECK(complaint("faults: [{kind: kill, link: [0, 1]}]\n").find("does not act on a link") !=
        std::string::npos);
  CHECK(complaint("faults: [{kind: corrupt, host: 1, stage: pear}]\n").find("not a stage") !=
        std::string::npos);
  CHECK(complaint("stages: [pairs, pairs]\n").find("stages holds pairs twice") !=
        std::string::npos);
  CHECK(complaint("faults: [{kind: slow, link: [1, 1], seconds: 1}]\n").find("no link to itself") !=
        std::string::npos);
  CHECK(
      complaint("faults: [{kind: slow, rank: 1, seconds: -1}]\n").find("only a clock goes back") !=
      std::string::npos);
  CHECK(complaint("sizes: [131073]\n").find("sizes is 131073") != std::string::npos);
  CHECK(complaint("hosts: 3\n").find("hosts is 3; write a map") != std::string::npos);
  CHECK(complaint("[1, 2]\n").find("the suite is a list; write a map") != std::string::npos);
  CHECK(complaint("sizes: []\n").find("write a list of at least one") != std::string::npos);
}
