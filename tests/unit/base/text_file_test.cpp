// Files have the written text; a write that the disk refuses is an error.
#include "base/text_file.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"
#include "tests/support/scratch_folder.h"

namespace shardproof {
namespace {

TEST_CASE("a text file holds what was written last", "[text_file]") {
  const sim::ScratchFolder folder;
  const std::string path = folder.path() + "/text";
  write_text_file(path, "a longer text\n");
  write_text_file(path, "short\r\n");
  std::ifstream in(path, std::ios::binary);
  CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == "short\r\n");
}

TEST_CASE("a full disk and a missing folder are refused by name", "[text_file]") {
  // A short text stays in the buffer until the file is closed; a long one is written before.
  for (const size_t bytes : {size_t{1}, size_t{1} << 20}) {
    CHECK_THROWS_WITH(write_text_file("/dev/full", std::string(bytes, 'x')),
                      Catch::Contains("'/dev/full' cannot be written"));
  }
  CHECK_THROWS_AS(write_text_file("/proc/nowhere/text", "x"), Error);
}

}  // namespace
}  // namespace shardproof
