// A case as the settings that a scenario file gives it, and the file that gives them.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "sim/case/scenario/scenario.h"

namespace shardproof::sim::explore {

// {key: value}; records are lists of maps: {"run.stages": [{"do": "train"}]}.
using CaseSettings = nlohmann::json;

// The value of a key, else the default of the option table.
nlohmann::json setting_of(const CaseSettings& settings, const std::string& path);

// A scenario file: `head` as comment lines, then a line for each key.
std::string scenario_text(const CaseSettings& settings, const std::string& head);

// What the checks before a run say: the case, or why there is none.
struct CheckedCase {
  std::optional<CaseSpec> spec = {};
  std::string sentence = {};  // why the settings are refused
  std::string key = {};       // the key at fault; "": none is named
};

// Reads the text that scenario_text makes for `file`, whose folder relative paths begin at.
CheckedCase check_settings(const CaseSettings& settings, const std::string& file,
                           const WorldChoice& world);

}  // namespace shardproof::sim::explore
