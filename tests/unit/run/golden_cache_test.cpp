// Goldens are kept between runs, found by their whole key, and deleted by age.
#include "sim/run/golden_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "tests/support/scratch_folder.h"

namespace shardproof::sim::run {

namespace {

namespace fs = std::filesystem;

OwnedFd blob_of(const std::string& text) {
  OwnedFd fd(::memfd_create("blob", MFD_CLOEXEC));
  REQUIRE(::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  return fd;
}

std::string text_of(const OwnedFd& fd) {
  std::string text(1 << 16, '\0');
  const ssize_t got = ::pread(fd.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(got));
  return text;
}

TEST_CASE("a golden is found by its whole key, and only as it was written", "[golden_cache]") {
  const ScratchFolder scratch;
  const fs::path folder = scratch.path() + "/made by the cache";
  const GoldenCache cache(folder);
  CHECK_FALSE(cache.find("key 1"));
  cache.keep("key 1", blob_of("blob one").get());
  cache.keep("key 2", blob_of("blob two").get());
  REQUIRE(cache.find("key 1"));
  CHECK(text_of(*cache.find("key 1")) == "blob one");
  CHECK(text_of(*cache.find("key 2")) == "blob two");
  CHECK_FALSE(cache.find("key"));
  size_t files = 0;
  for (const auto& file : fs::directory_iterator(folder)) {
    ++files;
    if (file.path().extension() == ".golden") fs::resize_file(file.path(), 5);  // incomplete
  }
  CHECK(files == 4);  // there is no temporary file
  CHECK_FALSE(cache.find("key 1"));
  cache.keep("key 1", blob_of("blob one").get());
  CHECK(cache.find("key 1"));
}

TEST_CASE("a cache that cannot be written keeps nothing and harms nothing", "[golden_cache]") {
  const GoldenCache nowhere("/proc/none/such");
  nowhere.keep("key", blob_of("blob").get());
  CHECK_FALSE(nowhere.find("key"));
  const GoldenCache off("");
  off.keep("key", blob_of("blob").get());
  CHECK_FALSE(off.find("key"));
}

TEST_CASE("the cache forgets what was used longest ago", "[golden_cache]") {
  const ScratchFolder folder;
  const GoldenCache cache(folder.path(), 250);
  for (const std::string key : {"a", "b", "c"}) {
    cache.keep(key, blob_of(std::string(100, key[0])).get());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(cache.find("a"));  // used now
  cache.trim();
  CHECK(cache.find("a"));
  CHECK_FALSE(cache.find("b"));
  CHECK(cache.find("c"));
}

TEST_CASE("the full key names what else the values depend on", "[golden_cache]") {
  const std::string key = GoldenCache::full_key("the case");
  CHECK_THAT(key, Catch::Contains("libtorch 2.") && Catch::Contains("threads ") &&
                      Catch::EndsWith("the case"));
  CHECK(key == GoldenCache::full_key("the case"));
  for (const char* hides : {"ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"}) {
    REQUIRE(::setenv(hides, "AVX2", 1) == 0);
    CHECK(key != GoldenCache::full_key("the case"));
    REQUIRE(::unsetenv(hides) == 0);
  }
}

}  // namespace
}  // namespace shardproof::sim::run
