// The parts of launch that are plain arithmetic: the hang rule, frames, the golden cache.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "sim/launch/call_board.h"
#include "sim/launch/ending_codec.h"
#include "sim/launch/exit_text.h"
#include "sim/launch/golden_cache.h"
#include "sim/launch/hang_rule.h"
#include "sim/launch/wire.h"
#include "tests/unit/launch/toy_workers.h"

namespace shardproof::sim {
namespace {

namespace fs = std::filesystem;

TEST_CASE("a world hangs when neither calls nor CPU move for the whole window", "[hang_rule]") {
  HangRule rule(2.0);
  const auto at = [&](double now_s, uint64_t calls, std::vector<double> cpu_s) {
    return rule.sample({now_s, calls, std::move(cpu_s)});
  };
  double now = 0;
  CHECK_FALSE(at(now, 5, {1.0, 1.0}));
  for (int i = 0; i < 7; ++i) CHECK_FALSE(at(now += 0.25, 5, {1.0, 1.0}));
  CHECK(at(now += 0.25, 5, {1.0, 1.001}));

  SECTION("a call starts the window anew") {
    CHECK_FALSE(at(now += 0.25, 6, {1.0, 1.0}));
    for (int i = 0; i < 7; ++i) CHECK_FALSE(at(now += 0.25, 6, {1.0, 1.0}));
    CHECK(at(now += 0.25, 6, {1.0, 1.0}));
  }
  SECTION("so does one rank that uses more than 5% of a core") {
    CHECK_FALSE(at(now += 0.25, 5, {1.0, 1.001 + 0.014}));
    CHECK_FALSE(at(now += 0.25, 5, {1.0, 1.015}));
  }
  SECTION("idle threads that wake up now and then do not") {
    double cpu = 1.001;
    CHECK(at(now += 0.25, 5, {1.0, cpu += 0.0013}));  // 0.5%
  }
  SECTION("a launcher that was stopped for an hour has seen one sample only") {
    rule.restart();
    CHECK_FALSE(at(now, 5, {1.0, 1.0}));
    CHECK_FALSE(at(now += 3600, 5, {1.0, 1.0}));
  }
}

TEST_CASE("frames and their descriptors arrive in order, however the bytes are cut", "[wire]") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const OwnedFd ours(ends[0]);
  OwnedFd theirs(ends[1]);
  const std::string large(3 << 20, 'x');
  std::thread writer([&] {
    send_frame(theirs.get(), FrameType::kCallLine, "first");
    for (const char* text : {"a", "b"}) {
      std::vector<OwnedFd> fds;
      fds.push_back(OwnedFd(::memfd_create(text, 0)));
      REQUIRE(::write(fds[0].get(), text, 1) == 1);
      FrameWriter(FrameType::kRequest, text, std::move(fds)).write_some(theirs.get(), false);
    }
    send_frame(theirs.get(), FrameType::kEndings, large);
    theirs.reset();
  });
  FrameReader reader;
  std::vector<Frame> frames;
  for (auto status = FrameReader::Status::kOpen; status == FrameReader::Status::kOpen;) {
    status = reader.read_some(ours.get(), false);
    while (auto frame = reader.next()) frames.push_back(std::move(*frame));
  }
  writer.join();
  REQUIRE(frames.size() == 4);
  CHECK(frames[0].payload == "first");
  CHECK(frames[0].fds.empty());
  for (const size_t i : {1, 2}) {
    REQUIRE(frames[i].fds.size() == 1);
    char content = 0;
    CHECK(::pread(frames[i].fds[0].get(), &content, 1, 0) == 1);
    CHECK(std::string(1, content) == frames[i].payload);
  }
  CHECK(frames[3].payload == large);
}

TEST_CASE("endings survive the socket, whatever bytes their texts hold", "[wire]") {
  RankEnding ending;
  ending.rank = 3;
  ending.kind = "died";
  ending.message = "broken \xff\xfe text";
  ending.bytes = std::string("\0\1\2", 3);
  ending.digests = {{.op = "send",
                     .group = "cp[0,1]",
                     .ranks = {0, 1},
                     .place = 1,
                     .sequence = 7,
                     .root = 0,
                     .tag = 2,
                     .step = 4,
                     .call = "send \xff",
                     .sent = {0xffffffffffffffff, 1},
                     .received = {}}};
  const auto back = decode_endings(encode(std::vector<RankEnding>{ending}));
  REQUIRE(back.size() == 1);
  CHECK(back[0].rank == 3);
  CHECK(back[0].kind == "died");
  CHECK(back[0].message == ending.message);
  CHECK(back[0].bytes == ending.bytes);
  REQUIRE(back[0].digests.size() == 1);
  const CallDigest& told = back[0].digests[0];
  CHECK(told.op == "send");
  CHECK(told.group == "cp[0,1]");
  CHECK(told.call == "send \xff");
  CHECK(told.ranks == std::vector<int64_t>{0, 1});
  CHECK(std::vector<int64_t>{told.place, told.sequence, told.root, told.tag, told.step} ==
        std::vector<int64_t>{1, 7, 0, 2, 4});
  CHECK(told.sent == std::vector<uint64_t>{0xffffffffffffffff, 1});
  CHECK(told.received.empty());
}

TEST_CASE("the call board is the same pages for every process that maps it", "[call_board]") {
  CallBoard board(3);
  CallBoard other(OwnedFd(::dup(board.fd())), 3);
  other.started(2);
  other.entered(2, std::string(1000, 'y'));
  other.entered(1, "short");
  CHECK(board.calls(0) == 0);
  CHECK(board.total_calls() == 2);
  CHECK(board.last_label(1) == "short");
  CHECK(board.last_label(2) == std::string(CallBoard::kLabelBytes - 1, 'y'));
  CHECK(board.crashed_rank() == -1);
  other.crashing();
  CHECK(board.crashed_rank() == 2);
  board.clear();
  CHECK(other.total_calls() == 0);
  CHECK(other.crashed_rank() == -1);
}

TEST_CASE("the last lines are those with something in them", "[exit_text]") {
  CHECK(last_lines("a\nb\n\n  \nc\n", 2) == "b\nc");
  CHECK(last_lines("", 2).empty());
}

struct CacheFolder {
  fs::path path =
      fs::temp_directory_path() / ("shardproof_cache_test_" + std::to_string(::getpid()));
  ~CacheFolder() { fs::remove_all(path); }
};

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
  const CacheFolder folder;
  const GoldenCache cache(folder.path);
  CHECK_FALSE(cache.find("key 1"));
  cache.keep("key 1", blob_of("blob one").get());
  cache.keep("key 2", blob_of("blob two").get());
  REQUIRE(cache.find("key 1"));
  CHECK(text_of(*cache.find("key 1")) == "blob one");
  CHECK(text_of(*cache.find("key 2")) == "blob two");
  CHECK_FALSE(cache.find("key"));
  size_t files = 0;
  for (const auto& file : fs::directory_iterator(folder.path)) {
    ++files;
    if (file.path().extension() == ".golden") fs::resize_file(file.path(), 5);  // torn
  }
  CHECK(files == 4);  // no temporary name is left
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
  const CacheFolder folder;
  const GoldenCache cache(folder.path, 250);
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
}  // namespace shardproof::sim
