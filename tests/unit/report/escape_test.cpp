// No byte from a rank makes a file unreadable.
#include "sim/report/escape.h"

#include <catch2/catch.hpp>
#include <limits>

using namespace shardproof::sim;
using namespace shardproof::sim::report;

TEST_CASE("text is made valid UTF-8, and valid text stays as it is", "[escape]") {
  CHECK(valid_utf8("plain, \xC3\xA9, \xE2\x82\xAC, \xF0\x9F\x98\x80") ==
        "plain, \xC3\xA9, \xE2\x82\xAC, \xF0\x9F\x98\x80");
  const std::string replaced = "\xEF\xBF\xBD";
  CHECK(valid_utf8("a\xFFz") == "a" + replaced + "z");
  CHECK(valid_utf8("\xC3") == replaced);  // cut off
  CHECK(valid_utf8("\xE2\x82") == replaced + replaced);
  CHECK(valid_utf8("\xC0\xAF") == replaced + replaced);  // overlong
  CHECK(valid_utf8("\xE0\x80\xAF") == replaced + replaced + replaced);
  CHECK(valid_utf8("\xED\xA0\x80") == replaced + replaced + replaced);  // a surrogate
  CHECK(valid_utf8("\xF4\x90\x80\x80").size() == 4 * replaced.size());  // above U+10FFFF
  CHECK(valid_utf8("") == "");
}

TEST_CASE("XML text holds no markup and no forbidden character", "[escape]") {
  CHECK(xml_text("<a href=\"x\">&'</a>") == "&lt;a href=&quot;x&quot;&gt;&amp;&apos;&lt;/a&gt;");
  CHECK(xml_text(std::string("\0\x01\x1b[31m\x7f", 8)) == "[31m");
  CHECK(xml_text("tab\tline\nreturn\r") == "tab\tline\nreturn&#13;");
  CHECK(xml_text("\xEF\xBF\xBE") == "");  // U+FFFE
  CHECK(xml_text("\xFF") == "\xEF\xBF\xBD");
}

TEST_CASE("every byte sequence of length two becomes valid text", "[escape]") {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string bytes = {static_cast<char>(first), static_cast<char>(second)};
      const std::string once = valid_utf8(bytes);
      REQUIRE(valid_utf8(once) == once);
      REQUIRE_NOTHROW(nlohmann::json(once).dump());
    }
  }
}

TEST_CASE("file names keep what tells cases apart", "[escape]") {
  CHECK(file_slug("tp/llama_tp2_sp[precision=float64]") == "tp.llama_tp2_sp[precision=float64]");
  CHECK(file_slug("a b:c*?\"<>|\n\xC3\xA9") == "a_b_c_________");
  CHECK(file_slug(std::string(300, 'x')).size() == 100);
}

TEST_CASE("numbers that JSON cannot hold become texts, at any depth", "[escape]") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(json_number(1.5).dump() == "1.5");
  CHECK(json_number(std::nan("")) == "nan");
  CHECK(json_number(-std::nan("")) == "nan");
  CHECK(json_number(infinity) == "inf");
  CHECK(json_number(-infinity) == "-inf");
  const nlohmann::json deep = {
      {"a", {1, std::nan(""), {{"b", infinity}}}}, {"c", 2}, {"d", nullptr}};
  CHECK(json_finite(deep).dump() == R"({"a":[1,"nan",{"b":"inf"}],"c":2,"d":null})");
}
