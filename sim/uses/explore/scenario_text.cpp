#include "sim/uses/explore/scenario_text.h"

#include <iterator>
#include <sstream>

#include "sim/case/scenario/schema.h"
#include "sim/run/case_check.h"

namespace shardproof::sim::explore {

using nlohmann::json;

namespace {

// Without the attributes that have their default value.
json short_records(const json& records, const std::string& path) {
  json list = json::array();
  for (const json& record : records) {
    json given = json::object();
    for (const auto& [name, value] : record.items()) {
      const Option* key = case_schema().find(path + "[]." + name);
      if (key == nullptr || key->default_value != value) given[name] = value;
    }
    list.push_back(given);
  }
  return list;
}

}  // namespace

json setting_of(const CaseSettings& settings, const std::string& path) {
  if (const auto found = settings.find(path); found != settings.end()) return *found;
  const Option* key = case_schema().find(path);
  return key == nullptr ? json() : key->default_value;
}

std::string scenario_text(const CaseSettings& settings, const std::string& head) {
  std::string text;
  std::istringstream lines(head);
  for (std::string line; std::getline(lines, line);) text += "# " + line + "\n";
  for (const auto& [path, value] : settings.items()) {
    const Option* key = case_schema().find(path);
    const bool records = key != nullptr && key->type == KeyType::kRecords;
    text += path + ": " + (records ? short_records(value, path) : value).dump() + "\n";
  }
  return text;
}

CheckedCase check_settings(const CaseSettings& settings, const std::string& file,
                           const WorldChoice& world) {
  // Errors without a position are at line 1, which is the head.
  constexpr int64_t kFirstKey = 2;
  CheckedCase checked;
  try {
    Scenario scenario = parse_scenario_text(file, scenario_text(settings, "-"), world);
    run::check_case(scenario.cases.at(0));
    checked.spec = std::move(scenario.cases[0]);
  } catch (const PlacedError& error) {
    checked.sentence = error.fact().substr(error.fact().find(": ") + 2);
    const int64_t place = error.line - kFirstKey;
    if (place >= 0 && place < static_cast<int64_t>(settings.size())) {
      checked.key = std::next(settings.begin(), place).key();
    }
  } catch (const Error& error) {
    checked.sentence = error.fact();
  }
  return checked;
}

}  // namespace shardproof::sim::explore
