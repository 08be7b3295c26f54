// A private folder goes with its object, and what killed processes left goes with the next one.
#include "base/temporary_folder.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <optional>

#include "tests/support/scratch_folder.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

void make_old(const std::string& path) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
}

TEST_CASE("folders that killed processes left are removed, held and young ones are not",
          "[temporary_folder]") {
  const sim::ScratchFolder scratch;
  const std::string prefix = scratch.path() + "/mine-";
  const std::string left = prefix + "aaaaaa", young = prefix + "bbbbbb";
  const std::string other = scratch.path() + "/other-aaaaaa";
  for (const std::string& path : {left, young, other}) fs::create_directories(path + "/inner");
  std::optional<TemporaryFolder> held(prefix);
  for (const std::string& path : {left, other, held->path()}) make_old(path);

  const TemporaryFolder next(prefix);
  CHECK_FALSE(fs::exists(left));
  CHECK(fs::exists(young));
  CHECK(fs::exists(other));
  CHECK(fs::exists(held->path()));
  const std::string path = held->path();
  held.reset();
  CHECK_FALSE(fs::exists(path));
  CHECK(fs::exists(next.path()));
}

}  // namespace
}  // namespace shardproof
