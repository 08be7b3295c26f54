#include "sim/case/scenario/schema.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "sim/case/scenario/scenario.h"
#include "tests/unit/case/scenario/refusal.h"

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
  CHECK(refusal_of("seed: '7'\n").find("remove the quotes") != std::string::npos);
  CHECK(refusal_of("seed: 1.5\n").find("seed is 1.5; it must be an integer") != std::string::npos);
  CHECK(refusal_of("seed: [1]\n").find("seed is a list; it must be an integer") !=
        std::string::npos);
  CHECK(refusal_of("seed:\n").find("seed has no value") != std::string::npos);
  CHECK(refusal_of("parallel: {sequence_parallel: yes}\n").find("write true") != std::string::npos);
  CHECK(refusal_of("parallel: 3\n").find("parallel is 3; it must be a map of keys") !=
        std::string::npos);
  CHECK(refusal_of("run: {optimizer: {kwargs: {lr: fast}}}\n").find("must be a number") !=
        std::string::npos);
  CHECK(
      refusal_of("run: {optimizer: {kwargs: {betas: [0.9]}}}\n").find("has 1 numbers; write two") !=
      std::string::npos);
  CHECK(refusal_of("data: {lengths: 5}\n").find("must be a list of integers") != std::string::npos);
  CHECK(refusal_of("tags: [a, 3]\n").find("tp/x.yaml:1:11: tags is 3; it must be text") !=
        std::string::npos);
}

TEST_CASE("Values out of range are refused, NaN and infinities too", "[scenario]") {
  CHECK(refusal_of("seed: -1\n").find("it must be from 0 to 9000000000000000") !=
        std::string::npos);
  CHECK(refusal_of("seed: 99999999999999999999\n").find("it must be from") != std::string::npos);
  CHECK(refusal_of("parallel: {tensor_parallel_size: 0}\n").find("from 1 to 65536") !=
        std::string::npos);
  CHECK(refusal_of("data: {token_mask_probability: 1.5}\n").find("from 0 to 1") !=
        std::string::npos);
  for (const std::string value : {".nan", ".inf", "-.inf", "1e999"}) {
    INFO(value);
    CHECK(
        refusal_of("run: {optimizer: {kwargs: {lr: " + value + "}}}\n").find("it must be from 0") !=
        std::string::npos);
  }
  CHECK(refusal_of("data: {lengths: [3, 0, 2]}\n").find("tp/x.yaml:1:21: data.lengths is 0") == 0);
}

TEST_CASE("Unknown names come with the nearest known one", "[scenario]") {
  CHECK(refusal_of("precision: flaot64\n").find("did you mean float64?") != std::string::npos);
  CHECK(refusal_of("run: {optimizer: {name: AdamX}}\n").find("did you mean AdamW?") !=
        std::string::npos);
  CHECK(refusal_of("run: {optimizer: {name: torch.optim.SGD}}\n") == "accepted");
  CHECK(refusal_of("expect: {verdict: matches}\n").find("did you mean match?") !=
        std::string::npos);
}

TEST_CASE("Unknown keys come with the nearest known one, or with where they belong", "[scenario]") {
  CHECK(refusal_of("seed: 1\nparalel: {tensor_parallel_size: 2}\n") ==
        "tp/x.yaml:2:1: unknown key 'paralel'; did you mean parallel?");
  CHECK(refusal_of("parallel: {tensor_paralel_size: 2}\n") ==
        "tp/x.yaml:1:12: unknown key 'parallel.tensor_paralel_size'; "
        "did you mean parallel.tensor_parallel_size?");
  CHECK(
      refusal_of("tensor_parallel_size: 2\n").find("did you mean parallel.tensor_parallel_size?") !=
      std::string::npos);
  CHECK(refusal_of("matrx: {}\n").find("did you mean matrix?") != std::string::npos);
  CHECK(refusal_of("data: {qqqqqqqqqqqqqqqqq: 1}\n").find("known here are case, batch_size") !=
        std::string::npos);
  CHECK(refusal_of("precision: {a: 1}\n").find("precision is a map") != std::string::npos);
  CHECK(refusal_of("faults[].kind: kill\n").find("unknown key") != std::string::npos);
}
