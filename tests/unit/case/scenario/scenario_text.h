// The only case of a scenario's text, or its error.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "sim/case/scenario/scenario.h"

namespace shardproof::sim {

inline CaseSpec only_case(const std::string& text, const WorldChoice& world = {}) {
  const Scenario scenario = parse_scenario_text("tp/x.yaml", text, world);
  REQUIRE(scenario.cases.size() == 1);
  return scenario.cases[0];
}

// "file:line:col: fact; fix", or "accepted".
inline std::string refusal_of(const std::string& text) {
  try {
    parse_scenario_text("tp/x.yaml", text);
    return "accepted";
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kBadInput ? error.what() : "not bad input";
  }
}

// Each text has an error that holds the words beside it.
inline void check_refused(const std::vector<std::pair<std::string, std::string>>& rows) {
  for (const auto& [text, said] : rows) {
    INFO(text);
    CHECK_THAT(refusal_of(text), Catch::Contains(said));
  }
}

}  // namespace shardproof::sim
