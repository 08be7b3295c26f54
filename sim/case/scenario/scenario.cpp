#include "sim/case/scenario/scenario.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/read_text.h"
#include "base/utf8.h"
#include "sim/case/scenario/build_case.h"
#include "sim/case/scenario/matrix.h"
#include "sim/case/scenario/problems.h"
#include "sim/case/scenario/skip.h"

namespace shardproof::sim {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxScenarioBytes = 1 << 20;
constexpr size_t kMaxName = 120;

bool is_name(const std::string& text) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/';
  };
  const bool walks = text.starts_with('/') || text.ends_with('/') || text.find("..") != text.npos;
  return !text.empty() && text.size() <= kMaxName && !walks && std::ranges::all_of(text, fits);
}

// "tp/llama": the scenario's name. Without a folder it gets that of its file, except for the root.
std::string scenario_name(const Settings& settings) {
  const fs::path path = fs::absolute(settings.file()).lexically_normal();
  std::string name = path.stem().string();
  if (settings.given("name")) {
    name = settings.get<std::string>("name");
    if (!is_name(name)) {
      settings.fail("name", fmt::format("'{}' is not a name", name.substr(0, kMaxName)),
                    "use letters, digits, '_', '-', '.' and '/', at most 120 of them");
    }
  }
  if (name.find('/') != std::string::npos) return name;
  const std::string folder = path.parent_path().filename().string();
  return folder.empty() || folder == "scenarios" ? name : folder + "/" + name;
}

// Why this world cannot run a valid case; "" when it can.
std::string world_skip(const CaseSpec& spec, const Settings& settings, const WorldChoice& world) {
  const auto& only = spec.backends;
  if (!only.empty() && std::ranges::find(only, name_of(world.backend)) == only.end()) {
    return fmt::format("this scenario is for {} only (world.backend)", fmt::join(only, ", "));
  }
  const nlohmann::json device = settings.value("world.device");
  if (!device.is_null() && device != name_of(world.device)) {
    return fmt::format("this scenario is for {} only (world.device)", device.get<std::string>());
  }
  return "";
}

int64_t line_of(const YamlNode& root, const std::string& key) {
  for (const YamlEntry& entry : root.entries) {
    if (entry.key == key) return entry.line;
  }
  return root.line;
}

// What the keys of a file say; each key is checked alone.
struct ScenarioKeys {
  ScenarioKeys() = default;
  ScenarioKeys(const Schema& schema, const std::string& file, const YamlNode& root,
               const std::vector<KnownWorkload>& workloads) {
    base.emplace(schema, file);
    base->add(root, {"matrix", "skip"});
    check_workload(*base, workloads);
    rules = read_skip(schema, file, root.find("skip"));
    name = scenario_name(*base);
    rows = expand_matrix(schema, file, root.find("matrix"));
    for (const MatrixRow& row : rows) check_workload(row.settings, workloads);
  }

  std::optional<Settings> base;
  std::vector<SkipRule> rules;
  std::string name;
  std::vector<MatrixRow> rows;
};

Settings settings_of_row(const ScenarioKeys& keys, const MatrixRow& row) {
  Settings settings = *keys.base;
  settings.overlay(row.settings);
  return settings;
}

CaseSpec case_of_row(const ScenarioKeys& keys, const MatrixRow& row, const Settings& settings,
                     const WorldChoice& world) {
  CaseSpec spec = build_case(settings, world);
  spec.name = row.label.empty() ? keys.name : fmt::format("{}[{}]", keys.name, row.label);
  spec.skip = row.skip;
  if (spec.skip.empty()) spec.skip = skip_reason(keys.rules, settings, world);
  if (spec.skip.empty()) spec.skip = world_skip(spec, settings, world);
  spec.skip = printable(spec.skip);
  return spec;
}

}  // namespace

Scenario parse_scenario_text(const std::string& file, const std::string& text,
                             const WorldChoice& world) {
  const Schema& schema = case_schema();
  const YamlNode root = parse_yaml(file, text);
  if (root.kind == YamlNode::Kind::kNull)
    fail_at(file, 1, 1, "the file is empty", "write `key: value` lines");
  ScenarioKeys keys;
  throw_all(problems_of(root, [&](const YamlNode& rest) {
    keys = ScenarioKeys(schema, file, rest, world.workloads);
  }));

  Scenario scenario;
  scenario.file = file;
  scenario.name = keys.name;
  std::vector<PlacedError> problems;
  for (const MatrixRow& row : keys.rows) {
    try {
      const Settings settings = settings_of_row(keys, row);
      scenario.cases.push_back(case_of_row(keys, row, settings, world));
      scenario.settings.push_back(settings.given_values());
    } catch (const PlacedError& error) {
      problems.push_back(error);
    }
  }
  throw_all(std::move(problems));
  for (CaseSpec& spec : scenario.cases) spec.line = line_of(root, "name");
  return scenario;
}

Scenario parse_scenario(const std::string& path, const WorldChoice& world) {
  return parse_scenario_text(path, read_text_file(path, kMaxScenarioBytes), world);
}

}  // namespace shardproof::sim
