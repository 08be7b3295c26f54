// The door to control under strangers: real sockets on loopback.
#include "sim/world/external/rank_listener.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>

#include "base/elapsed.h"
#include "sim/world/process/wire.h"

namespace shardproof::sim::world {
namespace rank_listener_test {

using namespace std::chrono_literals;

const std::string kSecretOfWorld = "what all ranks of this world know";
constexpr std::chrono::milliseconds kShort{60};

class Door {
 public:
  explicit Door(std::chrono::milliseconds patience = 60s)
      : listener(listen_at("127.0.0.1", 0, true), kSecretOfWorld, 3, patience) {}

  OwnedFd call() { return connect_to(listener.address(), 60s); }
  // Serves until somebody has been taken in.
  std::vector<RankListener::Rank> serve() {
    const auto start = std::chrono::steady_clock::now();
    std::vector<RankListener::Rank> ranks;
    while (ranks.empty() && seconds_since(start) < 60) ranks = listener.take(10ms);
    return ranks;
  }
  // Serves until so many were refused and nobody else was; what it says of them then.
  std::string refuse(const std::string& how_many) {
    const auto start = std::chrono::steady_clock::now();
    while (!listener.refusals().starts_with(how_many) && seconds_since(start) < 60) {
      CHECK(listener.take(10ms).empty());
    }
    CHECK(listener.take(kShort).empty());
    return listener.refusals();
  }
  // Serves until this caller has its greeting.
  void greet(const OwnedFd& caller) {
    char greeting[kGreetingBytes];
    const auto start = std::chrono::steady_clock::now();
    while (::recv(caller.get(), greeting, sizeof(greeting), MSG_PEEK | MSG_DONTWAIT) !=
           static_cast<ssize_t>(sizeof(greeting))) {
      REQUIRE(seconds_since(start) < 60);
      REQUIRE(listener.take(10ms).empty());
    }
  }

  RankListener listener;
};

std::string answer_to(int socket, const std::string& secret, int64_t rank = 1) {
  return RankHandshake(secret, rank, 3).answer(receive(socket, kGreetingBytes, 60s).value_or(""));
}

void say(int socket, const std::string& bytes) {
  REQUIRE(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
}

// All that the other side says until it closes the connection.
std::string rest(int socket) {
  std::string text;
  while (const auto byte = receive(socket, 1, 60s)) text += *byte;
  return text;
}

TEST_CASE("a rank with the secret is taken in", "[external]") {
  Door door;
  const OwnedFd caller = door.call();
  door.greet(caller);
  RankHandshake handshake(kSecretOfWorld, 1, 3);
  say(caller.get(), handshake.answer(*receive(caller.get(), kGreetingBytes, 60s)));
  const auto ranks = door.serve();
  REQUIRE(ranks.size() == 1);
  CHECK(ranks[0].rank == 1);
  CHECK(handshake.check(*receive(caller.get(), kReplyBytes, 60s)));
  CHECK(door.listener.refusals().empty());
}

TEST_CASE("strangers get a greeting and nothing else, and are counted", "[external]") {
  Door door;
  std::vector<OwnedFd> callers;
  for (int i = 0; i < 4; ++i) callers.push_back(door.call());
  for (const OwnedFd& caller : callers) door.greet(caller);
  say(callers[0].get(), answer_to(callers[0].get(), "what somebody else knows"));
  const std::string right = answer_to(callers[1].get(), kSecretOfWorld);
  say(callers[1].get(), right + "and more");
  say(callers[2].get(), right.substr(0, 50));
  callers[2].reset();
  say(callers[3].get(),
      "GET / HTTP/1.1\r\nHost: a name that makes this longer than an answer: 72 bytes\r\n\r\n");
  CHECK(door.refuse("4 ") == "4 connections without the secret were refused, from 127.0.0.1");
  CHECK(rest(callers[0].get()).empty());
  CHECK(rest(callers[1].get()).empty());
  CHECK(rest(callers[3].get()).size() == kGreetingBytes);
}

TEST_CASE("a recorded answer does not open the door again", "[external]") {
  Door door;
  const OwnedFd first = door.call(), again = door.call();
  door.greet(first);
  door.greet(again);
  const std::string answer = answer_to(first.get(), kSecretOfWorld);
  say(first.get(), answer);
  CHECK(door.serve().size() == 1);
  say(again.get(), answer);
  CHECK(door.refuse("1 ") == "1 connection without the secret was refused, from 127.0.0.1");
}

TEST_CASE("silent strangers keep no rank waiting", "[external]") {
  Door door;
  std::vector<OwnedFd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(door.call());
  const OwnedFd caller = door.call();
  door.greet(caller);
  say(caller.get(), answer_to(caller.get(), kSecretOfWorld));
  CHECK(door.serve().size() == 1);
  CHECK(door.listener.refusals() ==
        "200 connections without the secret were refused, from 127.0.0.1");
}

TEST_CASE("a rank of another world size is named and no stranger", "[external]") {
  Door door;
  const OwnedFd caller = door.call();
  door.greet(caller);
  RankHandshake handshake(kSecretOfWorld, 1, 4);
  say(caller.get(), handshake.answer(*receive(caller.get(), kGreetingBytes, 60s)));
  CHECK(door.refuse("rank 1 ") == "rank 1 of 127.0.0.1 came with WORLD_SIZE=4 where rank 0 has 3");
  CHECK(rest(caller.get()).empty());
}

TEST_CASE("a silent stranger is refused in time", "[external]") {
  Door door(100ms);
  const OwnedFd silent = door.call();
  CHECK(door.refuse("1 ") == "1 connection without the secret was refused, from 127.0.0.1");
  CHECK(rest(silent.get()).size() == kGreetingBytes);
}

TEST_CASE("a frame that is not sealed closes the stream", "[external]") {
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  const OwnedFd ours(pair[0]), theirs(pair[1]);
  FrameSeal seal{FrameSeal::Key{7}};
  FrameReader reader(seal);
  const auto type = static_cast<uint16_t>(FrameType::kCallLine);
  send_frame(theirs.get(), FrameType::kCallLine, seal.close(type, "sealed"));
  send_frame(theirs.get(), FrameType::kCallLine, "as it is");
  send_frame(theirs.get(), FrameType::kCallLine, seal.close(type, "too late"));
  REQUIRE(reader.read_some(ours.get(), true) == FrameReader::Status::kOpen);
  CHECK(reader.next()->payload == "sealed");
  CHECK_FALSE(reader.next());
  CHECK(reader.forged());
  CHECK_FALSE(reader.next());
  CHECK(reader.read_some(ours.get(), true) == FrameReader::Status::kClosed);
}

TEST_CASE("control listens at the address that it was given and at no other", "[external]") {
  const ListeningSocket listening = listen_at("127.0.0.2", 0, true);
  CHECK(listening.address.host == "127.0.0.2");
  CHECK(own_address(listening.socket.get()).host == "127.0.0.2");
  CHECK_THROWS_WITH(connect_to({"127.0.0.1", listening.address.port}, 0s),
                    Catch::Contains("Connection refused"));
}

TEST_CASE("an address where nobody can listen is a sentence", "[external]") {
  CHECK_THROWS_WITH(listen_at("192.0.2.1", 0, false),
                    Catch::Contains("cannot listen at MASTER_ADDR=192.0.2.1: Cannot assign"));
  CHECK_THROWS_WITH(listen_at("127.0.1.1", 0, false), Catch::Contains("is loopback"));
  const ListeningSocket taken = listen_at("127.0.0.1", 0, true);
  CHECK_THROWS_WITH(listen_at("127.0.0.1", taken.address.port, true),
                    Catch::Contains("Address already in use"));
}

}  // namespace rank_listener_test
}  // namespace shardproof::sim::world
