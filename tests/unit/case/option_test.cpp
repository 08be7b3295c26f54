#include "sim/case/option.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

using namespace shardproof::sim;
using nlohmann::json;

namespace {

// A value that differs from the option's. Lists of records are tested with their structs.
json other_value(const CaseOption& option, const json& value) {
  switch (option.type) {
    case KeyType::kBool:
      return !value.get<bool>();
    case KeyType::kInteger:
      return value.get<int64_t>() + 1;
    case KeyType::kNumber:
      return value.get<double>() / 2 + 0.125;
    case KeyType::kName:
      return option.choices.at(value == option.choices.front() ? 1 : 0);
    case KeyType::kNames:
      return json::array({option.choices.front()});
    case KeyType::kTexts:
      return json::array({"other"});
    case KeyType::kIntegers:
      return json::array({3});
    case KeyType::kMap:
      return json{{"other", 1}};
    default:
      return value == "" ? "other" : value.get<std::string>() + ".5";
  }
}

}  // namespace

TEST_CASE("Every option reaches a place of its own in a case, and the golden's key if marked so",
          "[option]") {
  std::set<json> cases = {to_json({})};
  const std::string key = golden_key({});
  int64_t changed = 0, ignored = 0;
  for (const CaseOption& option : case_options()) {
    if (!option.get || option.type == KeyType::kRecords) continue;
    INFO(option.path << " " << option.member);
    CaseSpec spec;
    const json other = other_value(option, option.get(spec, Extent::kAll));
    option.set(spec, other);
    CHECK(option.get(spec, Extent::kAll) == other);
    // A key without a member's name sets a block, whose own rows made the same change before.
    CHECK(cases.insert(to_json(spec)).second != option.member.empty());
    const bool ignores = option.golden == Golden::kIgnores;
    CHECK((golden_key(spec) == key) == ignores);
    ++changed;
    ignored += option.golden == Golden::kIgnores ? 1 : 0;
  }
  CHECK(changed > 90);
  CHECK(ignored > 40);
}

TEST_CASE("A flag is spelt once, and its option has a member", "[option]") {
  std::set<std::string> flags;
  for (const CaseOption& option : case_options()) {
    if (option.flag_name().empty()) continue;
    INFO(option.flag.names);
    CHECK(option.flag_name().starts_with("--"));
    CHECK(flags.insert(option.flag_name()).second);
    CHECK(option.set);
    CHECK_FALSE(option.doc.empty());
  }
  CHECK(flags.count("--context-rotation") == 1);
}
