#include "sim/cli/arguments.h"

#include <catch2/catch.hpp>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

using namespace shardproof::sim;
using namespace shardproof::sim::cli;

namespace {

using Catch::Matchers::Contains;

// `words` are separated by single spaces.
ParsedArguments parse(const std::string& words) {
  std::istringstream text("shardproof " + words);
  return parse_arguments({std::istream_iterator<std::string>(text), {}});
}

Arguments parsed(const std::string& words) {
  const ParsedArguments arguments = parse(words);
  INFO(arguments.text);
  REQUIRE(arguments.arguments.has_value());
  return *arguments.arguments;
}

std::string refusal_of(const std::string& words) {
  const ParsedArguments arguments = parse(words);
  INFO(words);
  CHECK(arguments.status == 2);
  CHECK_FALSE(arguments.arguments.has_value());
  return arguments.text;
}

}  // namespace

TEST_CASE("run takes paths, selections and how to run", "[cli]") {
  const Arguments all = parsed(
      "run a.yaml b --backend emulated,gloo --filter tp --filter sp --jobs 3 --shard 2/5 "
      "--time-budget 1.5 --rerun-failed runs/x --fresh --shuffle 7 --out o --no-skips "
      "--no-unresolved --no-cache --only c[tp=2] --seed 9 --dump d --maxfail 4 --allow-partial "
      "--force");
  CHECK(all.command == "run");
  CHECK(all.run.max_fail == 4);
  CHECK(all.run.allow_partial);
  CHECK(all.run.force);
  CHECK(all.run.paths == std::vector<std::string>{"a.yaml", "b"});
  CHECK(all.run.backends == std::vector<std::string>{"emulated", "gloo"});
  CHECK(all.run.filters == std::vector<std::string>{"tp", "sp"});
  CHECK(all.run.jobs == 3);
  CHECK(all.run.shard == 2);
  CHECK(all.run.shard_count == 5);
  CHECK(all.run.time_budget_s == 1.5);
  CHECK(all.run.rerun_failed == "runs/x");
  CHECK(all.run.world.fresh);
  CHECK(all.run.shuffle == 7);
  CHECK(all.run.out == "o");
  CHECK(all.run.dump == "d");
  CHECK(all.run.no_skips);
  CHECK(all.run.no_unresolved);
  CHECK(all.run.world.no_cache);
  CHECK(all.run.only == "c[tp=2]");
  CHECK(all.run.seed == 9);
}

TEST_CASE("A path after --filter is a path", "[cli]") {
  const Arguments all = parsed("run --filter tp a.yaml");
  CHECK(all.run.filters == std::vector<std::string>{"tp"});
  CHECK(all.run.paths == std::vector<std::string>{"a.yaml"});
}

TEST_CASE("check takes a case, a mesh and flags", "[cli]") {
  const Arguments all = parsed(
      "check case --mesh dp=1,cp=2,tp=2 --sequence-parallel --ulysses 2 --packed --context-layout "
      "contiguous --context-rotation all_gather --data-parallel fsdp --precision bfloat16 "
      "--backend gloo --steps 4 --dump d --world-size 8 --microbatch 3 --dynamic-batching 64");
  CHECK(all.check.case_path == "case");
  CHECK(all.check.mesh == "dp=1,cp=2,tp=2");
  CHECK(all.check.ulysses == 2);
  CHECK(all.check.packed);
  CHECK(all.check.dump == "d");
  CHECK(all.check.world_size == 8);
  CHECK(all.check.dynamic_tokens == 64);
  const std::vector<std::pair<std::string, std::string>> flags = {
      {"--sequence-parallel", "true"},
      {"--fsdp-no-reshard", ""},
      {"--context-layout", "contiguous"},
      {"--context-rotation", "all_gather"},
      {"--data-parallel", "fsdp"},
      {"--precision", "bfloat16"},
      {"--backend", "gloo"},
      {"--steps", "4"},
      {"--microbatch", "3"}};
  for (const auto& [flag, value] : flags) {
    INFO(flag);
    CHECK(all.check.flags.at(flag) == value);
  }
  CHECK(parsed("check case --micro-batch 2").check.flags.at("--microbatch") == "2");
  CHECK(parsed("check case --fsdp-no-reshard").check.flags.at("--fsdp-no-reshard") == "false");
  for (const char* word : {"--activation-checkpointing", "--activation-checkpointing=mlp"}) {
    CHECK(parsed(std::string("check ") + word + " case")
              .check.flags.at("--activation-checkpointing") == "mlp");
  }
}

TEST_CASE("What is misspelt is refused with the nearest known word", "[cli]") {
  CHECK_THAT(
      refusal_of("check x --context-rotation allgather"),
      Contains("--context-rotation: is 'allgather'; known are send_recv, all_to_all, all_gather"));
  CHECK_THAT(refusal_of("run --bakend=gloo"),
             Contains("run has no option --bakend") && Contains("did you mean --backend?"));
  CHECK_THAT(refusal_of("run --backend glo"), Contains("did you mean gloo?"));
  CHECK_THAT(refusal_of("check c --precision float46"),
             Contains("shardproof: --precision: is 'float46'; known are float64,") &&
                 Contains("did you mean float64?"));
  CHECK_THAT(refusal_of("check"), Contains("case"));
}

TEST_CASE("Numbers out of range are refused", "[cli]") {
  refusal_of("run --jobs 0");
  refusal_of("run --jobs many");
  refusal_of("run --time-budget -1");
  refusal_of("run --time-budget nan");
  refusal_of("run --maxfail 0");
  refusal_of("run --seed -1");
  CHECK_THAT(refusal_of("check c --steps 0"),
             Contains("--steps: is 0; it must be from 1 to 100000"));
  CHECK_THAT(refusal_of("check c --deadline soon"), Contains("it must be a number"));
  refusal_of("check c --world-size 65537");
  for (const char* shard : {"0/4", "5/4", "1", "1/", "/4", "a/b", "1/4x", "-1/4", "1/0"}) {
    INFO(shard);
    CHECK_THAT(refusal_of(std::string("run --shard ") + shard), Contains("is not a shard"));
  }
}

TEST_CASE("Help and version are no failure", "[cli]") {
  for (const char* words : {"--help", "run --help", "--version"}) {
    const ParsedArguments asked = parse(words);
    CHECK(asked.status == 0);
    CHECK_FALSE(asked.arguments.has_value());
    CHECK_FALSE(asked.text.empty());
  }
  CHECK_THAT(parse("--help").text, Contains("schema") && Contains("3: a world failed"));
}
