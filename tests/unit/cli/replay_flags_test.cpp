#include <catch2/catch.hpp>
#include <filesystem>

#include "sim/cli/check_case.h"

using namespace shardproof::sim;
using namespace shardproof::sim::cli;

TEST_CASE("A replay keeps the flags that took the place of what the file says", "[cli]") {
  RunArguments run;
  const std::string program = with_replay_flags("shardproof", run, 0);  // this one has its own name
  CHECK(std::filesystem::path(program).filename() == "unit_cli");
  CHECK(with_replay_flags("shardproof run a.yaml", run, 0) == program + " run a.yaml");
  run.seed = 0;
  CHECK(with_replay_flags("shardproof run a.yaml", run, 7) == program + " run a.yaml --seed 0");
  run.schedules = 20;
  CHECK(with_replay_flags("shardproof run a.yaml", run, 7) ==
        program + " run a.yaml --seed 0 --schedules 7");
  CHECK(with_replay_flags("shardproof run a.yaml", run, 0) == program + " run a.yaml --seed 0");

  CheckArguments check;
  check.flags = {{"--steps", "3"}, {"--seed", "7"}, {"--precision", "float32"}};
  check.custom_plan = "my plan.json";
  CHECK(with_replay_flags("shardproof check a", check) ==
        program + " check a --seed 7 --steps 3 --custom-plan 'my plan.json'");
}

TEST_CASE("What cannot be replayed stays so", "[cli]") {
  RunArguments run;
  run.seed = 7;
  CHECK(with_replay_flags("", run, 0).empty());
  CheckArguments check;
  check.flags = {{"--seed", "7"}};
  CHECK(with_replay_flags("", check).empty());
}
