#include "base/utf8.h"

#include <catch2/catch.hpp>

using namespace shardproof;

TEST_CASE("the first byte that is no UTF-8 is found", "[utf8]") {
  const size_t none = std::string_view::npos;
  CHECK(invalid_utf8("") == none);
  CHECK(invalid_utf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80") == none);  // 1 to 4 bytes
  CHECK(invalid_utf8("ab\xC3") == 2);                                    // cut off
  CHECK(invalid_utf8("\xC0\xAF") == 0);                                  // overlong
  CHECK(invalid_utf8("x\xE0\x80\xAF") == 1);
  CHECK(invalid_utf8("\xED\xA0\x80") == 0);      // a surrogate
  CHECK(invalid_utf8("\xF4\x90\x80\x80") == 0);  // over U+10FFFF
  CHECK(invalid_utf8("ab\x80") == 2);            // a byte that continues nothing
}

TEST_CASE("what a message shows of a file has no control characters and no half letters",
          "[utf8]") {
  CHECK(printable("plain, \xC3\xA9") == "plain, \xC3\xA9");
  CHECK(printable("a\x1B[31m\n\x7F") == "a?[31m??");
  CHECK(printable("\xC2\x9B"
                  "31m") == "?31m");  // C1: one character, as terminals obey it
  CHECK(printable("\xFFz\xC3") == "?z?");
  CHECK(printable(std::string_view("a\0b", 3)) == "a?b");
  CHECK(is_printable("\xC2\xA0 is no control character"));
  CHECK_FALSE(is_printable("two\nlines"));
}

TEST_CASE("a text is cut between two characters", "[utf8]") {
  CHECK(printable("abcdef", 6) == "abcdef");
  CHECK(printable("abcdef", 3) == "abc...");
  CHECK(printable("ab\xE2\x82\xAC", 4) == "ab...");
  CHECK(printable("ab\xE2\x82\xAC", 5) == "ab\xE2\x82\xAC");
}
