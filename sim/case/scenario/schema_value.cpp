// Checks that a value in a scenario file has its key's type and range.
#include <fmt/format.h>

#include <cmath>

#include "base/count_of.h"
#include "base/error.h"
#include "sim/case/names.h"
#include "sim/case/scenario/schema.h"

namespace shardproof::sim {

using nlohmann::json;

namespace {

constexpr size_t kMaxItems = 100000;  // of one list
constexpr size_t kMaxText = 4096;

// One value to check: its key and its file, for messages.
struct Checked {
  const Option& key;
  const std::string& file;

  [[noreturn]] void fail(const YamlNode& node, const std::string& what,
                         const std::string& fix) const {
    if (file.empty()) throw_bad_input(what, fix);
    fail_at(file, node.line, node.column, what, fix);
  }
  [[noreturn]] void wrong_type(const YamlNode& node, const std::string& wanted) const {
    std::string hint = "mend the value";
    const std::string& text = node.text;
    if (wanted == "true or false" && (text == "yes" || text == "on" || text == "1"))
      hint = "write true";
    if (wanted == "true or false" && (text == "no" || text == "off" || text == "0"))
      hint = "write false";
    if (!node.quoted && wanted == "text") hint = "write it in quotes, if it is meant as text";
    if (node.quoted && wanted != "text") hint = "remove the quotes if it is not text";
    fail(node, fmt::format("{} is {}; it must be {}", key.path, node.describe(), wanted), hint);
  }
  void in_range(const YamlNode& node, double value) const {
    if (value >= key.low && value <= key.high) return;  // NaN is never in range
    fail(node,
         fmt::format("{} is {}; it must be from {} to {}", key.path, node.text, key.low, key.high),
         "choose a value in that range");
  }

  json text(const YamlNode& node) const {
    const json value = node.value();
    if (!value.is_string()) wrong_type(node, "text");
    if (node.text.size() > kMaxText) {
      fail(node, fmt::format("{} is text of {} bytes", key.path, node.text.size()),
           fmt::format("at most {} bytes", kMaxText));
    }
    return value;
  }
  json integer(const YamlNode& node) const {
    const json value = node.value();
    const bool huge = value.is_number_float() && std::abs(value.get<double>()) >= 1e15;
    if (!value.is_number_integer() && !huge) wrong_type(node, "an integer");
    in_range(node, value.get<double>());
    return value;
  }
  json number(const YamlNode& node) const {
    const json value = node.value();
    if (!value.is_number()) wrong_type(node, "a number");
    in_range(node, value.get<double>());
    return value.get<double>();
  }
  json boolean(const YamlNode& node) const {
    const json value = node.value();
    if (!value.is_boolean()) wrong_type(node, "true or false");
    return value;
  }
  json name(const YamlNode& node) const {
    const json value = node.value();
    if (value.is_boolean() && !key.of_bool.empty()) return key.of_bool[value.get<bool>() ? 1 : 0];
    if (!value.is_string()) wrong_type(node, "a name");
    std::string word = value.get<std::string>();
    for (const std::string prefix : {"torch.optim.", "lr_scheduler."}) {
      if (word.starts_with(prefix)) word = word.substr(prefix.size());
    }
    if (key.default_value == word) return word;  // "", where nothing is chosen
    for (const std::string& choice : key.choices) {
      if (choice == word) return word;
    }
    fail(node, fmt::format("{} is '{}'; {}", key.path, word, known_names(word, key.choices)),
         "choose a known name");
  }
  template <class One>
  json list(const YamlNode& node, const std::string& wanted, const One& one) const {
    if (node.kind != YamlNode::Kind::kList) wrong_type(node, wanted);
    if (node.items.size() > kMaxItems) {
      fail(node, fmt::format("{} has {} items", key.path, node.items.size()),
           fmt::format("at most {}", kMaxItems));
    }
    json values = json::array();
    for (const YamlNode& item : node.items) values.push_back(one(item));
    return values;
  }
  json names(const YamlNode& node) const {
    if (node.kind != YamlNode::Kind::kList) return json::array({name(node)});
    return list(node, "a list of names", [this](const YamlNode& item) { return name(item); });
  }
  json pair(const YamlNode& node) const {
    // An error of one number has the place of the pair, which is not a pair without it.
    const json two = list(node, "two numbers", [&](YamlNode item) {
      item.line = node.line;
      item.column = node.column;
      return number(item);
    });
    if (two.size() != 2) {
      fail(node, fmt::format("{} has {}", key.path, count_of(std::ssize(two), "number")),
           "write two");
    }
    return two;
  }
};

}  // namespace

json Schema::checked(const Option& key, const YamlNode& node, const std::string& file) {
  const Checked check{key, file};
  const bool nothing = node.value().is_null() && node.kind != YamlNode::Kind::kMap;
  if (nothing && key.nullable) return nullptr;
  if (nothing) check.fail(node, key.path + " has no value", "write one, or remove the key");
  switch (key.type) {
    case KeyType::kText:
      return check.text(node);
    case KeyType::kInteger:
      return check.integer(node);
    case KeyType::kNumber:
      return check.number(node);
    case KeyType::kBool:
      return check.boolean(node);
    case KeyType::kName:
      return check.name(node);
    case KeyType::kNames:
      return check.names(node);
    case KeyType::kNumberPair:
      return check.pair(node);
    case KeyType::kIntegers:
      return check.list(node, "a list of integers",
                        [&](const YamlNode& item) { return check.integer(item); });
    case KeyType::kTexts:
      return check.list(node, "a list of texts",
                        [&](const YamlNode& item) { return check.text(item); });
    case KeyType::kMap:
      if (node.kind != YamlNode::Kind::kMap) check.wrong_type(node, "a map");
      return node.value();
    case KeyType::kNone:
    case KeyType::kRecords:
      break;  // the owner of the records reads them key by key
  }
  const bool records = node.kind == YamlNode::Kind::kList || node.kind == YamlNode::Kind::kMap;
  if (!records) check.wrong_type(node, "a list of maps");
  return json::array();
}

json Schema::checked_flag(const Option& option, const std::string& text) {
  Option named = option;
  named.path = option.flag_name();
  YamlNode node;
  node.kind = YamlNode::Kind::kScalar;
  node.text = text;
  return checked(named, node, "");
}

}  // namespace shardproof::sim
