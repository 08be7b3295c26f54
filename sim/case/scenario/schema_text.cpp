// The table of keys for people and for editors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "sim/case/scenario/schema.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

std::string type_text(const Option& key) {
  // In the order of KeyType; kName and kNames list their choices.
  constexpr std::array kTexts = {
      "text",          "integer",    "number",           "true|false", "",         "",
      "[integer, ..]", "[text, ..]", "[number, number]", "map",        "[map, ..]"};
  const bool named = key.type == KeyType::kName || key.type == KeyType::kNames;
  if (!named) return kTexts.at(static_cast<size_t>(key.type));
  return fmt::format("{}{}", fmt::join(key.choices, "|"), key.of_bool.empty() ? "" : "|true|false");
}

json name_schema(const Option& key) {
  json names = key.choices;
  if (key.default_value == "") names.push_back("");  // nothing is chosen
  if (!key.of_bool.empty()) names.insert(names.end(), {true, false});
  return {{"enum", names}};
}

json number_schema(const Option& key) {
  return {{"type", "number"}, {"minimum", key.low}, {"maximum", key.high}};
}

json integer_schema(const Option& key) {
  return {{"type", "integer"},
          {"minimum", static_cast<int64_t>(key.low)},
          {"maximum", static_cast<int64_t>(key.high)}};
}

json list_schema(json items) { return {{"type", "array"}, {"items", std::move(items)}}; }

json type_schema(const Option& key) {
  switch (key.type) {
    case KeyType::kText:
      return {{"type", "string"}};
    case KeyType::kInteger:
      return integer_schema(key);
    case KeyType::kNumber:
      return number_schema(key);
    case KeyType::kBool:
      return {{"type", "boolean"}};
    case KeyType::kName:
      return name_schema(key);
    case KeyType::kNames:
      return {{"anyOf", {name_schema(key), list_schema(name_schema(key))}}};
    case KeyType::kNumberPair: {
      json pair = list_schema(number_schema(key));
      pair["minItems"] = pair["maxItems"] = 2;
      return pair;
    }
    case KeyType::kIntegers:
      return list_schema(integer_schema(key));
    case KeyType::kTexts:
      return list_schema({{"type", "string"}});
    case KeyType::kMap:
      return {{"type", "object"}};
    case KeyType::kRecords:
    case KeyType::kNone:
      break;
  }
  return list_schema({{"type", "object"}, {"additionalProperties", false}});
}

// [{"parallel.tensor_parallel_size": ">1", "workload": "train"}, ..]
json needs_schema(const Option& key) {
  json ways = json::array();
  for (const Way& way : key.needs) {
    json settings = json::object();
    for (const Needed& one : way) {
      settings[one.path] =
          one.takes_numbers() ? json(fmt::format(">{}", one.above.value_or(1))) : one.value;
    }
    ways.push_back(std::move(settings));
  }
  return ways;
}

json key_schema(const Option& key) {
  json schema = type_schema(key);
  if (key.nullable) schema = {{"anyOf", {schema, {{"type", "null"}}}}};
  schema["description"] = key.doc;
  if (!key.default_value.is_null()) schema["default"] = key.default_value;
  if (!key.needs.empty()) schema["x-needs"] = needs_schema(key);
  if (!key.not_paired.empty()) schema["x-not-paired"] = key.not_paired;
  return schema;
}

// The object that holds `path`'s last part, which is created; "faults[].kind" is in the items.
json& schema_place(json& root, const std::string& path, std::string& name) {
  json* block = &root;
  size_t begin = 0;
  for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', begin)) {
    std::string part = path.substr(begin, dot - begin);
    const bool list = part.ends_with("[]");
    if (list) part.resize(part.size() - 2);
    json& child = (*block)["properties"][part];
    if (child.is_null()) child = {{"type", "object"}, {"additionalProperties", false}};
    block = list ? &child["items"] : &child;
    begin = dot + 1;
  }
  name = path.substr(begin);
  return *block;
}

json skip_schema() {
  const json rule = {
      {"type", "object"},
      {"required", {"reason"}},
      {"additionalProperties", false},
      {"properties", {{"reason", {{"type", "string"}}}, {"when", {{"type", "object"}}}}}};
  const json one = {{"anyOf", {{{"type", "string"}}, rule}}};
  return {{"description", "Why cases are skipped: a reason, or reasons with conditions on keys"},
          {"anyOf", {{{"type", "string"}}, rule, list_schema(one)}}};
}

json matrix_schema() {
  return {
      {"description",
       "Swept keys: a key's whole path and its values, or a label and rows {name: .., key: value}"},
      {"type", "object"},
      {"additionalProperties", {{"type", "array"}, {"minItems", 1}}}};
}

}  // namespace

json Schema::json_schema() const {
  json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "shardproof scenario"},
               {"type", "object"},
               {"additionalProperties", false}};
  for (const CaseOption& key : keys_) {
    std::string name;
    json& block = schema_place(root, key.path, name);
    block["properties"][name] = key_schema(key);
  }
  root["properties"]["matrix"] = matrix_schema();
  root["properties"]["skip"] = skip_schema();
  return root;
}

std::string Schema::describe_keys() const {
  std::string text;
  for (const CaseOption& key : keys_) {
    const std::string given = key.default_value.is_null() ? "-" : key.default_value.dump();
    const std::string flag = key.flag_name().empty() ? "" : " (" + key.flag_name() + ")";
    text +=
        fmt::format("{:<40} {:<24} {:<14} {}{}\n", key.path, type_text(key), given, key.doc, flag);
  }
  text +=
      fmt::format("{:<40} {:<24} {:<14} {}\n", "matrix", "map of lists", "-",
                  "Sweeps any key: {key: [value, ..]} or {label: [{name: .., key: value}, ..]}");
  text +=
      fmt::format("{:<40} {:<24} {:<14} {}\n", "skip", "reason or rules", "-",
                  "A reason, or {reason: .., when: {key: value or values}}, or a list of those");
  return text;
}

}  // namespace shardproof::sim
