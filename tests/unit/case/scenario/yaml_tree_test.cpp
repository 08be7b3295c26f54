#include "sim/case/scenario/yaml_tree.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/said_by.h"

using namespace shardproof;
using namespace shardproof::sim;
using nlohmann::json;

namespace {

std::string failure_of(const std::string& text) {
  return tests::told_by(ErrorKind::kBadInput, [&] { parse_yaml("f.yaml", text); });
}

std::string repeated(const std::string& piece, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += piece;
  return text;
}

}  // namespace

TEST_CASE("A quote that is not closed is found where it opens", "[scenario]") {
  for (const char* text : {"a: 1\nb: \"bug 12\nc: [1, 2]\n", "a: 1\nb: 'bug 12", "a: [x, \"y"}) {
    CHECK_THAT(failure_of(text), Catch::Contains("f.yaml:") && Catch::Contains("not closed") ||
                                     Catch::Contains("this is not YAML"));
  }
  CHECK_THAT(failure_of("a: 1\nb: \"bug 12\nc: [1, 2]\n"),
             Catch::Contains("f.yaml:2:4: the quote that opens here is not closed"));
  CHECK(parse_yaml("f", "a: \"one\n  --- two\"\n").entries.size() == 1);
  CHECK(parse_yaml("f", "a: 'it''s'").entries.front().value.text == "it's");
}

TEST_CASE("Every node knows its line and column", "[scenario]") {
  const YamlNode root = parse_yaml("f", "a: 1\nb:\n  - x\n  - {c: 2}\n");
  REQUIRE(root.entries.size() == 2);
  CHECK(root.entries[1].line == 2);
  const YamlNode& list = root.entries[1].value;
  CHECK(list.items[0].line == 3);
  CHECK(list.items[0].column == 5);
  CHECK(list.items[1].entries[0].line == 4);
  CHECK(list.items[1].entries[0].column == 6);
}

TEST_CASE("Scalars have the types of YAML's core rules", "[scenario]") {
  const std::vector<std::pair<std::string, json>> rows = {
      {"12", 12},
      {"-3", -3},
      {"1e-3", 1e-3},
      {"0.5", 0.5},
      {"true", true},
      {"False", false},
      {"~", nullptr},
      {"", nullptr},
      {"yes", "yes"},
      {"off", "off"},
      {"'12'", "12"},
      {"\"true\"", "true"},
      {"1_000", "1_000"},
      {"0x10", "0x10"},
      {"2.11.0", "2.11.0"},
      {"--1", "--1"},
      {"nan", "nan"},
      {".inf", INFINITY},
      {"99999999999999999999", 99999999999999999999.0}};
  for (const auto& [scalar, value] : rows) {
    INFO(scalar);
    CHECK(parse_yaml("f", "k: " + scalar).find("k")->value() == value);
  }
}

TEST_CASE("Tags are refused", "[scenario]") {
  CHECK(failure_of("a: !!str 3\n").find("f.yaml:1:4: tags") == 0);
  CHECK(failure_of("a: !mine {b: 1}\n").find("tags") != std::string::npos);
}

TEST_CASE("Deep, long and wide files are refused, not followed", "[scenario]") {
  CHECK(failure_of(repeated("[", 100)).find("nested more than 32 deep") != std::string::npos);
  CHECK(failure_of("a: [" + repeated("1,", 300000) + "1]").find("more than 200000 values") !=
        std::string::npos);
  std::string wide;
  for (int i = 0; i < 3000; ++i) wide += "k" + std::to_string(i) + ": 1\n";
  CHECK(failure_of(wide).find("a map of more than 1000 keys") != std::string::npos);
}

TEST_CASE("Files that are no text or no single document are refused with the place", "[scenario]") {
  CHECK(failure_of("a: 1\nb: \xff\n").find("f.yaml:2:4: byte 0xff is not UTF-8") == 0);
  CHECK(failure_of(std::string("a: 1\nb\0: 2\n", 11)).find("f.yaml:2:2: byte 0x00") == 0);
  CHECK(failure_of("a: b: c\n").find("f.yaml:1:5: this is not YAML") == 0);
  CHECK(failure_of("? [a, b]\n: 1\n").find("a key must be text") != std::string::npos);
}

TEST_CASE("A byte order mark is no part of the first key", "[scenario]") {
  CHECK(parse_yaml("f",
                   "\xEF\xBB\xBF"
                   "a: 1\n")
            .find("a") != nullptr);
}
