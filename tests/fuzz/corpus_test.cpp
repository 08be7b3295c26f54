// Passes every input of the corpus through its reader, without libFuzzer.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "tests/fuzz/promise.h"

using namespace shardproof;
using namespace shardproof::fuzz;
namespace fs = std::filesystem;

namespace {

struct Replay {
  int read = 0, refused = 0;
};

std::string bytes_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

Replay replay(const std::string& reader, const std::function<Ending(std::string_view)>& read) {
  Replay replay;
  for (const auto& entry : fs::directory_iterator(fs::path("tests/fuzz/corpus") / reader)) {
    INFO(entry.path());
    Ending ending = Ending::kRefused;
    CHECK_NOTHROW(ending = read(bytes_of(entry.path())));
    ++(ending == Ending::kRead ? replay.read : replay.refused);
  }
  return replay;
}

}  // namespace

// Both endings must occur: inputs that are all refused at their first byte would test nothing.
TEST_CASE("the corpus of each reader keeps that reader's promise", "[fuzz]") {
  const auto [name, read] = GENERATE(
      std::pair<std::string, std::function<Ending(std::string_view)>>("scenario", read_scenario),
      std::pair<std::string, std::function<Ending(std::string_view)>>("safetensors_header",
                                                                      read_safetensors_header),
      std::pair<std::string, std::function<Ending(std::string_view)>>("model_config",
                                                                      read_model_config));
  INFO(name);
  const Replay result = replay(name, read);
  CHECK(result.read >= 3);
  CHECK(result.refused >= 3);
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
