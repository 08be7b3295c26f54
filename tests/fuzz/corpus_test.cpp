// Passes every input of the corpus through its reader, without libFuzzer.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

#include "tests/fuzz/promise.h"

using namespace shardproof;
using namespace shardproof::fuzz;
namespace fs = std::filesystem;

namespace {

using Reader = std::function<Ending(std::string_view)>;

std::string bytes_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

}  // namespace

// Both endings must occur: inputs that are all refused at their first byte would test nothing.
TEST_CASE("the corpus of each reader keeps that reader's promise", "[fuzz]") {
  const auto [folders, extension, read] = GENERATE(table<std::vector<fs::path>, fs::path, Reader>(
      {{{"tests/fuzz/corpus/scenario"}, "", read_scenario},
       {{"scenarios", "tests/hostile"}, ".yaml", read_scenario},
       {{"tests/fuzz/corpus/safetensors_header"}, "", read_safetensors_header},
       {{"tests/fuzz/corpus/model_config"}, "", read_model_config}}));
  std::map<Ending, int> count;
  for (const fs::path& folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.path().extension() != extension) continue;
      INFO(entry.path());
      Ending ending = Ending::kRefused;
      CHECK_NOTHROW(ending = read(bytes_of(entry.path())));
      ++count[ending];
    }
  }
  INFO(folders[0]);
  CHECK(count[Ending::kRead] >= 3);
  CHECK(count[Ending::kRefused] >= 3);
}

TEST_CASE("a reader that breaks its promise is seen", "[fuzz]") {
  const auto throws = [](const std::string& fact, ErrorKind kind) {
    return value_or_sentence([&] { throw Error({.kind = kind, .what = fact, .fix = "mend it"}); });
  };
  CHECK(throws("a sentence", ErrorKind::kBadInput) == Ending::kRefused);
  CHECK_THROWS_AS(throws("", ErrorKind::kBadInput), BrokenPromise);
  CHECK_THROWS_AS(throws("two\rlines", ErrorKind::kBadInput), BrokenPromise);
  CHECK_THROWS_AS(throws("an empty line\n\n", ErrorKind::kBadInput), BrokenPromise);
  CHECK_THROWS_AS(throws("half a letter \xc3", ErrorKind::kRefused), BrokenPromise);
  CHECK_THROWS_AS(throws("a world", ErrorKind::kFailed), BrokenPromise);
  CHECK_THROWS_AS(value_or_sentence([] { throw std::runtime_error("something else"); }),
                  std::runtime_error);
}
