// Data between control and a worker: frames, endings, the call board, last lines.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <thread>

#include "sim/world/process/call_board.h"
#include "sim/world/process/ending_codec.h"
#include "sim/world/process/process_clock.h"
#include "sim/world/process/wire.h"

namespace shardproof::sim::world {
namespace {

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
  ending.kind = ResultKind::kDied;
  ending.message = "broken \xff\xfe text";
  ending.bytes = std::string("\0\1\2", 3);
  const auto back = decode_endings(encode(std::vector<RankEnding>{ending}));
  REQUIRE(back.size() == 1);
  CHECK(back[0].rank == 3);
  CHECK(back[0].kind == ResultKind::kDied);
  CHECK(back[0].message == ending.message);
  CHECK(back[0].bytes == ending.bytes);
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

}  // namespace
}  // namespace shardproof::sim::world
