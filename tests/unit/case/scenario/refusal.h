// The error of a scenario's text.
#pragma once

#include <string>

#include "base/error.h"
#include "sim/case/scenario/scenario.h"

namespace shardproof::sim {

// "file:line:col: fact; fix", or "accepted".
inline std::string refusal_of(const std::string& text) {
  try {
    parse_scenario_text("tp/x.yaml", text);
    return "accepted";
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kBadInput ? error.what() : "not bad input";
  }
}

}  // namespace shardproof::sim
