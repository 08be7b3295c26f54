#include "sim/case/scenario/skip.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

SkipCondition read_condition(const Schema& schema, const std::string& file,
                             const YamlEntry& entry) {
  const Option* key = schema.find(entry.key);
  if (key == nullptr || entry.key.find('[') != std::string::npos) {
    std::vector<std::string> paths;
    for (const Option& known : schema.keys()) paths.push_back(known.path);
    std::string nearest = schema.path_named(entry.key);
    if (nearest.empty()) nearest = nearest_name(entry.key, paths);
    fail_at(file, entry.line, entry.column, fmt::format("unknown key '{}' in skip.when", entry.key),
            nearest.empty() ? "name a key by its whole path"
                            : fmt::format("did you mean {}?", nearest));
  }
  SkipCondition condition{entry.key, json::array()};
  const bool scalar_key = key->type != KeyType::kIntegers && key->type != KeyType::kTexts &&
                          key->type != KeyType::kNumberPair && key->type != KeyType::kNames;
  if (scalar_key && entry.value.kind == YamlNode::Kind::kList) {
    for (const YamlNode& item : entry.value.items) {
      condition.values.push_back(schema.checked(*key, item, file));
    }
  } else if (key->type == KeyType::kNames) {
    condition.values = schema.checked(*key, entry.value, file);
  } else {
    condition.values.push_back(schema.checked(*key, entry.value, file));
  }
  return condition;
}

SkipRule read_rule(const Schema& schema, const std::string& file, const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kScalar && node.value().is_string()) return {node.text, {}};
  if (node.kind != YamlNode::Kind::kMap) {
    fail_at(file, node.line, node.column, fmt::format("skip is {}", node.describe()),
            "write a reason in words, or {reason: .., when: {key: value}}");
  }
  SkipRule rule;
  for (const YamlEntry& entry : node.entries) {
    if (entry.key == "reason") {
      if (entry.value.value().is_string()) rule.reason = entry.value.text;
    } else if (entry.key == "when" && entry.value.kind == YamlNode::Kind::kMap) {
      for (const YamlEntry& condition : entry.value.entries) {
        rule.when.push_back(read_condition(schema, file, condition));
      }
    } else {
      fail_at(file, entry.line, entry.column,
              fmt::format("unknown or ill-typed key '{}' in skip", entry.key),
              "a skip has reason: text and when: {key: value}");
    }
  }
  if (rule.reason.empty()) {
    fail_at(file, node.line, node.column, "this skip has no reason", "add reason: why");
  }
  return rule;
}

bool condition_holds(const SkipCondition& condition, const Settings& settings,
                     const WorldChoice& world) {
  json value;
  if (condition.path == "world.backend") {
    value = world.backend;
  } else if (condition.path == "world.device") {
    value = world.device;
  } else {
    value = settings.value(condition.path);
    if (value.is_null() && condition.path == "parallel.data_parallel_size") value = 1;
  }
  return std::ranges::find(condition.values, value) != condition.values.end();
}

}  // namespace

std::vector<SkipRule> read_skip(const Schema& schema, const std::string& file,
                                const YamlNode* skip) {
  std::vector<SkipRule> rules;
  if (skip == nullptr) return rules;
  if (skip->kind != YamlNode::Kind::kList) return {read_rule(schema, file, *skip)};
  for (const YamlNode& item : skip->items) rules.push_back(read_rule(schema, file, item));
  return rules;
}

std::string skip_reason(const std::vector<SkipRule>& rules, const Settings& settings,
                        const WorldChoice& world) {
  for (const SkipRule& rule : rules) {
    const bool all = std::ranges::all_of(rule.when, [&](const SkipCondition& condition) {
      return condition_holds(condition, settings, world);
    });
    if (all) return rule.reason;
  }
  return "";
}

}  // namespace shardproof::sim
