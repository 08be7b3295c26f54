#include "sim/case/scenario/schema.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "sim/case/scenario/scenario.h"
#include "tests/unit/case/scenario/scenario_text.h"

using namespace shardproof::sim;
using nlohmann::json;

TEST_CASE("No key is in the table twice, and none is also a block", "[scenario]") {
  const Schema schema;
  std::set<std::string> paths;
  for (const Option& key : schema.keys()) {
    INFO(key.path);
    CHECK(paths.insert(key.path).second);
    CHECK_FALSE(schema.is_block(key.path));
    CHECK_FALSE(key.doc.empty());
  }
}

TEST_CASE("Every default is of its key's own type and in its range", "[scenario]") {
  const Schema schema;
  for (const Option& key : schema.keys()) {
    const bool checkable = !key.default_value.is_null() && key.type != KeyType::kRecords;
    if (!checkable || key.default_value == "") continue;
    INFO(key.path);
    const YamlNode root = parse_yaml("f", "k: " + key.default_value.dump());
    CHECK_NOTHROW(schema.checked(key, *root.find("k"), "f"));
  }
}

TEST_CASE("The table's defaults are those of a case", "[scenario]") {
  const CaseSpec spec = parse_scenario_text("tp/x.yaml", "seed: 0\n").cases.at(0);
  CaseSpec plain;
  plain.name = spec.name;
  plain.file = spec.file;
  plain.line = spec.line;
  plain.model = spec.model;
  CHECK(to_json(spec) == to_json(plain));
}

TEST_CASE("scenarios/schema.json is what `shardproof schema` prints", "[scenario]") {
  std::ifstream stream("scenarios/schema.json");
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  INFO("write it anew: shardproof schema > scenarios/schema.json");
  CHECK((text == Schema().json_schema().dump(2) + "\n"));
}

TEST_CASE("scenarios/README.md holds the table of keys", "[scenario]") {
  std::ifstream stream("scenarios/README.md");
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  INFO("paste what `shardproof list --keys` prints");
  CHECK((text.find(Schema().describe_keys()) != std::string::npos));
}

TEST_CASE("Ill-typed values are refused with place, key and what is wanted", "[scenario]") {
  CHECK(refusal_of("seed: seven\n") ==
        "tp/x.yaml:1:7: seed is the text 'seven'; it must be an integer; mend the value");
  check_refused({{"seed: 1.5\n", "seed is 1.5; it must be an integer"},
                 {"seed: [1]\n", "seed is a list; it must be an integer"},
                 {"seed:\n", "seed has no value"},
                 {"parallel: 3\n", "parallel is 3; it must be a map of keys; write `key: value`"},
                 {"parallel: {tp: 2}\n", "did you mean parallel.tensor_parallel_size? Else write"},
                 {"run: {optimizer: {kwargs: {lr: fast}}}\n", "must be a number"},
                 {"run: {optimizer: {kwargs: {betas: [0.9]}}}\n", "has 1 number; write two"},
                 {"data: {lengths: 5}\n", "must be a list of integers"},
                 {"tags: [a, 3]\n", "tp/x.yaml:1:11: tags is 3; it must be text"}});
}

TEST_CASE("Values out of range are refused, NaN and infinities too", "[scenario]") {
  check_refused({{"seed: -1\n", "it must be from 0 to 9000000000000000"},
                 {"seed: 99999999999999999999\n", "it must be from"},
                 {"data: {token_mask_probability: 1.5}\n", "from 0 to 1"}});
  for (const std::string value : {".nan", ".inf", "-.inf", "1e999"}) {
    check_refused({{"run: {optimizer: {kwargs: {lr: " + value + "}}}\n", "it must be from 0"}});
  }
}

TEST_CASE("Unknown names and keys come with the nearest known one, or with those of their place",
          "[scenario]") {
  CHECK(refusal_of("run: {optimizer: {name: torch.optim.SGD}}\n") == "accepted");
  check_refused({{"expect: {verdict: matches}\n", "did you mean match?"},
                 {"matrx: {}\n", "did you mean matrix?"},
                 {"data: {qqqqqqqqqqqqqqqqq: 1}\n", "known here are case, batch_size"},
                 {"precision: {a: 1}\n", "precision is a map"},
                 {"faults[].kind: kill\n", "unknown key"}});
}
