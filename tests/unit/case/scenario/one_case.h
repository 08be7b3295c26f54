// The only case of a scenario that consists of a name and a few lines.
#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "sim/case/scenario/scenario.h"

namespace shardproof::sim {

inline CaseSpec case_with(const std::string& lines) {
  const Scenario scenario = parse_scenario_text("tp/x.yaml", "name: x\n" + lines + "\n");
  REQUIRE(scenario.cases.size() == 1);
  return scenario.cases[0];
}

}  // namespace shardproof::sim
