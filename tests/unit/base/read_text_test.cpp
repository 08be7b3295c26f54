// The reader of all JSON files.
#include "base/read_text.h"

#include <catch2/catch.hpp>

#include "tests/support/said_by.h"

using shardproof::Error;
using shardproof::parse_json_object;

namespace {

std::string refusal_of(const std::string& text, int64_t first_line = 1) {
  return shardproof::tests::told_by(shardproof::ErrorKind::kBadInput,
                                    [&] { parse_json_object("f.json", text, first_line); });
}

}  // namespace

TEST_CASE("a key that stands twice in an object is named with the place of the second", "[base]") {
  const std::string said = "stands twice in one object; keep one";
  CHECK(refusal_of("{\"a\": 1,\n  \"b\": 2, \"a\": 3}") == "f.json:2:11: the key \"a\" " + said);
  CHECK(refusal_of("{\"x\": [{\"a\": 1}, {\"b\": 2, \"b\": {}}]}") ==
        "f.json:1:27: the key \"b\" " + said);
  CHECK(refusal_of("{\"a\": {\"c\": 1}, \"a\": 2}", 7) == "f.json:7:17: the key \"a\" " + said);
  // Escapes are read before keys are compared; the place is that of the first quote.
  CHECK(refusal_of("{\"\\\"\": 1, \"\\u0022\": 2}") == "f.json:1:11: the key \"\"\" " + said);
  CHECK(refusal_of("{\"a\\\"b\": 1, \"a\\\"b\": 2}") == "f.json:1:13: the key \"a\"b\" " + said);
}

TEST_CASE("equal keys of different objects are no repeated key", "[base]") {
  CHECK(refusal_of(R"({"a": {"a": [{"a": 1}, {"a": 2}]}, "b": {"a": 3}})") == "");
}

TEST_CASE("what the JSON library says has no code of it", "[base]") {
  for (const char* text : {"{\"a\": 1e999}", "{\"a\" 1}", "", "{\"a\": \"\xff\"}"}) {
    CHECK(refusal_of(text).find("json.exception") == std::string::npos);
    CHECK(refusal_of(text).find("this is not JSON") != std::string::npos);
  }
  try {
    nlohmann::json(3).get<std::string>();
    FAIL("a number became a text");
  } catch (const nlohmann::json::exception& error) {
    CHECK(shardproof::json_problem(error) == "type must be string, but is number");
  }
}
