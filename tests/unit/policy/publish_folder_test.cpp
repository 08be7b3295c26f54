// A folder gets its final name, on file systems without flags of renameat2 too.
#include "policy/publish_folder.h"

#include <stdio.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>

#include "base/read_text.h"
#include "tests/support/scratch_folder.h"

namespace shardproof::tests::publish_folder_test {
namespace {

namespace fs = std::filesystem;

// A folder "written" with a file, and with `taken` an older folder "name".
struct Folders {
  explicit Folders(bool taken) {
    fs::create_directory(written);
    root.write("written/file", "new");
    if (!taken) return;
    fs::create_directory(name);
    root.write("name/file", "old");
  }
  std::string contents() const { return read_text_file(name + "/file", 10); }

  sim::ScratchFolder root;
  const std::string written = root.path() + "/written", name = root.path() + "/name";
};

// Refuses the flags `unknown` with `error`.
RenameCall without(unsigned unknown, int error) {
  return [=](const char* from, const char* to, unsigned flags) {
    if ((flags & unknown) == 0) return rename_with_flags(from, to, flags);
    errno = error;
    return -1;
  };
}

constexpr unsigned kBoth = RENAME_NOREPLACE | RENAME_EXCHANGE;

TEST_CASE("a folder takes a free name, and replaces the folder that has it", "[policy][PW-8]") {
  for (const bool taken : {false, true}) {
    const Folders folders(taken);
    publish_folder(folders.written, folders.name);
    CHECK(folders.contents() == "new");
    CHECK_FALSE(fs::exists(folders.written));
  }
}

TEST_CASE("a file system without flags gives a free name, and refuses a taken one",
          "[policy][PW-8]") {
  for (const int error : {EINVAL, ENOSYS, EOPNOTSUPP}) {
    const Folders free(false);
    publish_folder(free.written, free.name, without(kBoth, error));
    CHECK(free.contents() == "new");
    CHECK_FALSE(fs::exists(free.written));
    // Linux itself sees that a name is taken before it asks the file system for RENAME_NOREPLACE.
    for (const unsigned unknown : {kBoth, unsigned{RENAME_EXCHANGE}}) {
      const Folders taken(true);
      CHECK_THROWS_WITH(publish_folder(taken.written, taken.name, without(unknown, error)),
                        Catch::Contains(taken.name + " exists") && Catch::Contains("delete it"));
      CHECK(taken.contents() == "old");
      CHECK(fs::exists(taken.written + "/file"));
    }
  }
}

TEST_CASE("any other error of a rename is said, and nothing else is tried", "[policy][PW-8]") {
  const Folders folders(false);
  CHECK_THROWS_WITH(publish_folder(folders.written, folders.name, without(kBoth, ENOSPC)),
                    Catch::Contains("No space left"));
  CHECK(fs::exists(folders.written + "/file"));
  CHECK_FALSE(fs::exists(folders.name));
}

}  // namespace
}  // namespace shardproof::tests::publish_folder_test
