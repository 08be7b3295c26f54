// A private folder goes with its object, and what killed processes left goes with the next one.
#include "base/temporary_folder.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>

#include "tests/support/scratch_folder.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

constexpr fs::perms kOfLocked = fs::perms::sticky_bit | fs::perms::owner_all;

TEST_CASE("folders that killed processes left are removed, those of others are not",
          "[temporary_folder]") {
  const sim::ScratchFolder scratch;
  const std::string prefix = scratch.path() + "/mine-";
  const std::string left = prefix + "aaaaaa", of_others = prefix + "bbbbbb";
  const std::string other = scratch.path() + "/other-aaaaaa";
  for (const std::string& path : {left, of_others, other}) fs::create_directories(path + "/inner");
  std::optional<TemporaryFolder> held(prefix);
  CHECK(fs::status(held->path()).permissions() == kOfLocked);
  for (const std::string& path : {left, other}) fs::permissions(path, kOfLocked);
  fs::permissions(of_others, fs::perms::owner_all);

  const TemporaryFolder next(prefix);
  CHECK_FALSE(fs::exists(left));
  CHECK(fs::exists(of_others));
  CHECK(fs::exists(other));
  CHECK(fs::exists(held->path()));
  const std::string path = held->path();
  held.reset();
  CHECK_FALSE(fs::exists(path));
  CHECK(fs::exists(next.path()));
}

}  // namespace
}  // namespace shardproof
