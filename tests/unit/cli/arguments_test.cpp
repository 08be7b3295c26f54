#include "sim/cli/arguments.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace shardproof::sim;

namespace {

ParsedArguments parse(std::vector<std::string> words) {
  words.insert(words.begin(), "shardproof");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return parse_arguments(static_cast<int>(argv.size()), argv.data());
}

Arguments parsed(const std::vector<std::string>& words) {
  const ParsedArguments arguments = parse(words);
  INFO(arguments.text);
  REQUIRE(arguments.arguments.has_value());
  return *arguments.arguments;
}

std::string refusal(const std::vector<std::string>& words) {
  const ParsedArguments arguments = parse(words);
  CHECK(arguments.status == 2);
  CHECK_FALSE(arguments.arguments.has_value());
  return arguments.text;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("run takes paths, selections and how to run", "[cli]") {
  const Arguments all = parsed({"run",
                                "a.yaml",
                                "b",
                                "--backend",
                                "emulated,gloo",
                                "--filter",
                                "tp",
                                "--filter",
                                "sp",
                                "--jobs",
                                "3",
                                "--shard",
                                "2/5",
                                "--time-budget",
                                "1.5",
                                "--rerun-failed",
                                "runs/x",
                                "--fresh",
                                "--shuffle",
                                "7",
                                "--out",
                                "o",
                                "--no-skips",
                                "--no-cache",
                                "--only",
                                "c[tp=2]",
                                "--seed",
                                "9"});
  CHECK(all.command == "run");
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
  CHECK(all.run.no_skips);
  CHECK(all.run.world.no_cache);
  CHECK(all.run.only == "c[tp=2]");
  CHECK(all.run.seed == 9);
}

TEST_CASE("A path after --filter is a path", "[cli]") {
  const Arguments all = parsed({"run", "--filter", "tp", "a.yaml"});
  CHECK(all.run.filters == std::vector<std::string>{"tp"});
  CHECK(all.run.paths == std::vector<std::string>{"a.yaml"});
}

TEST_CASE("check takes a case, a mesh and flags", "[cli]") {
  const Arguments all = parsed({"check",
                                "case",
                                "--mesh",
                                "dp=1,cp=2,tp=2",
                                "--sequence-parallel",
                                "--ulysses",
                                "2",
                                "--packed",
                                "--context-layout",
                                "contiguous",
                                "--context-rotation",
                                "all_gather",
                                "--data-parallel",
                                "fsdp",
                                "--precision",
                                "bfloat16",
                                "--backend",
                                "gloo",
                                "--steps",
                                "4",
                                "--dump",
                                "d",
                                "--world-size",
                                "8"});
  CHECK(all.check.case_path == "case");
  CHECK(all.check.mesh == "dp=1,cp=2,tp=2");
  CHECK(all.check.sequence_parallel);
  CHECK(all.check.ulysses == 2);
  CHECK(all.check.packed);
  CHECK(all.check.context_layout == "contiguous");
  CHECK(all.check.context_rotation == "all_gather");
  CHECK(all.check.data_parallel == "fsdp");
  CHECK(all.check.precision == "bfloat16");
  CHECK(all.check.backend == "gloo");
  CHECK(all.check.steps == 4);
  CHECK(all.check.dump == "d");
  CHECK(all.check.world_size == 8);
}

TEST_CASE("What is misspelt is refused with the nearest known word", "[cli]") {
  CHECK(holds(refusal({"chek", "x"}), "unknown command 'chek'"));
  CHECK(holds(refusal({"chek", "x"}), "did you mean check?"));
  CHECK(holds(refusal({"run", "--bakend", "gloo"}),
              "run has no option --bakend; did you mean --backend?"));
  CHECK(holds(refusal({"check", "x", "--context-rotation", "allgather"}),
              "'allgather' is unknown; known are send_recv, all_to_all, all_gather"));
  CHECK(holds(refusal({"run", "--bakend=gloo"}), "did you mean --backend?"));
  CHECK(holds(refusal({"run", "--backend", "glo"}), "did you mean gloo?"));
  CHECK(holds(refusal({"check", "c", "--precision", "float46"}), "did you mean float64?"));
  CHECK(holds(refusal({"check"}), "case"));
}

TEST_CASE("Numbers out of range are refused", "[cli]") {
  refusal({"run", "--jobs", "0"});
  refusal({"run", "--jobs", "many"});
  refusal({"run", "--time-budget", "-1"});
  refusal({"run", "--seed", "-1"});
  refusal({"check", "c", "--steps", "0"});
  refusal({"check", "c", "--world-size", "65537"});
  for (const char* shard : {"0/4", "5/4", "1", "1/", "/4", "a/b", "1/4x", "-1/4", "1/0"}) {
    INFO(shard);
    CHECK(holds(refusal({"run", "--shard", shard}), "is no shard"));
  }
}

TEST_CASE("Help and version are no failure", "[cli]") {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--help"}, {"run", "--help"}, {"--version"}}) {
    const ParsedArguments asked = parse(words);
    CHECK(asked.status == 0);
    CHECK_FALSE(asked.arguments.has_value());
    CHECK_FALSE(asked.text.empty());
  }
  CHECK_FALSE(holds(parse({"--help"}).text, "schema"));
}
