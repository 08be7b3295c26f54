// The text of a case is read back as the same case, and the checks name the key at fault.
#include "sim/uses/explore/scenario_text.h"

#include <catch2/catch.hpp>

namespace shardproof::sim::explore {

TEST_CASE("the text of settings gives the same settings") {
  const CaseSettings settings = {
      {"workload", "policy"},      {"run.max_grad_norm", nullptr},
      {"run.grad_norm.type", "2"}, {"run.optimizer.kwargs.lr", 1e-6},
      {"data.lengths", {5, 3}},    {"run.stages", {{{"do", "train"}, {"eval_mode", true}}}}};
  const Scenario read = parse_scenario_text("t/case.yaml", scenario_text(settings, "one\ntwo"));
  REQUIRE(read.cases.size() == 1);
  CHECK(read.settings[0]["run.stages"][0]["eval_mode"] == true);
  CaseSettings same = read.settings[0];
  same["run.stages"] = settings["run.stages"];
  CHECK(same == settings);
  CHECK(scenario_text(read.settings[0], "one\ntwo") == scenario_text(settings, "one\ntwo"));
}

TEST_CASE("a row of the matrix is part of the settings of its case") {
  const Scenario read = parse_scenario_text(
      "t/case.yaml", "seed: 3\nmatrix: {parallel.tensor_parallel_size: [1, 2]}\n");
  REQUIRE(read.settings.size() == 2);
  CHECK(read.settings[1] == CaseSettings{{"seed", 3}, {"parallel.tensor_parallel_size", 2}});
}

TEST_CASE("the checks name the key at fault") {
  const CheckedCase range = check_settings({{"seed", 1}, {"run.steps", 0}}, "t/case.yaml", {});
  CHECK_FALSE(range.spec);
  CHECK(range.key == "run.steps");
  CHECK(range.sentence.starts_with("run.steps is 0"));
  const CheckedCase none = check_settings({{"workload", "policy"}}, "t/case.yaml", {});
  CHECK_FALSE(none.spec);
  CHECK(none.key.empty());
  CHECK(check_settings({{"seed", 1}}, "t/case.yaml", {}).spec);
}

}  // namespace shardproof::sim::explore
