// What control and a rank accept of each other, and of somebody between them.
#include "sim/world/external/handshake.h"

#include <catch2/catch.hpp>

namespace shardproof::sim::world {
namespace {

const std::string kSecret = "what all ranks of this world know";

// Both ends of a handshake that went well, with what was said.
struct Met {
  explicit Met(const std::string& secret_of_rank = kSecret, int64_t rank = 2, int64_t size = 3)
      : control(kSecret, 3), rank_side(secret_of_rank, rank, size) {
    answer = rank_side.answer(control.greeting());
    proved = control.check(answer);
    if (proved) seals = rank_side.check(proved->reply);
  }
  ControlHandshake control;
  RankHandshake rank_side;
  std::string answer;
  std::optional<ProvedRank> proved;
  std::optional<Seals> seals;
};

TEST_CASE("who knows the secret is taken in, by control and by the rank", "[external]") {
  Met met;
  REQUIRE(met.proved);
  CHECK(met.proved->rank == 2);
  REQUIRE(met.seals);
  const std::string sealed = met.seals->out.close(11, "an ending");
  CHECK(sealed.find("an ending") == std::string::npos);
  CHECK(met.proved->seals.in.open(11, sealed) == "an ending");
  CHECK(met.seals->in.open(1, met.proved->seals.out.close(1, "a request")) == "a request");
}

TEST_CASE("another secret proves nothing, to control or to the rank", "[external]") {
  CHECK_FALSE(Met(kSecret + " not").proved);
  CHECK_FALSE(Met("").proved);
  // Somebody who poses as control answers with a secret of his own.
  RankHandshake rank(kSecret, 1, 2);
  const ControlHandshake impostor("what somebody else knows", 2);
  RankHandshake accomplice("what somebody else knows", 1, 2);
  rank.answer(impostor.greeting());
  const auto reply = impostor.check(accomplice.answer(impostor.greeting()))->reply;
  CHECK_FALSE(rank.check(reply));
}

TEST_CASE("what was said on one connection proves nothing on another", "[external]") {
  const Met met;
  const ControlHandshake next(kSecret, 3);
  CHECK_FALSE(next.check(met.answer));
  RankHandshake rank(kSecret, 2, 3);
  rank.answer(met.control.greeting());
  CHECK_FALSE(rank.check(met.proved->reply));
}

TEST_CASE("what a side said proves nothing when it comes back to it", "[external]") {
  const Met met;
  const std::string mac_of_rank = met.answer.substr(kAnswerBytes - kReplyBytes);
  CHECK_FALSE(met.rank_side.check(mac_of_rank));
  const std::string facts = met.answer.substr(0, kAnswerBytes - kReplyBytes);
  CHECK_FALSE(met.control.check(facts + met.proved->reply));
  RankHandshake rank(kSecret, 0, 3);
  CHECK(rank.answer(met.answer.substr(0, kGreetingBytes)).empty());
}

TEST_CASE("a proof holds for its rank and its world only", "[external]") {
  const Met met;
  for (size_t at = 0; at < met.answer.size(); ++at) {
    std::string changed = met.answer;
    changed[at] ^= 1;
    INFO("byte " << at);
    CHECK_FALSE(met.control.check(changed));
  }
  for (const auto& [rank, size] : {std::pair<int64_t, int64_t>{3, 3}, {2, 4}}) {  // 0 to 2 of 3
    const Met other(kSecret, rank, size);
    REQUIRE(other.proved);
    CHECK(other.proved->reply.empty());
    CHECK_FALSE(other.seals);
  }
}

TEST_CASE("an answer of another length proves nothing", "[external]") {
  const Met met;
  for (const size_t size : {size_t{0}, size_t{1}, kAnswerBytes - 1}) {
    CHECK_FALSE(met.control.check(met.answer.substr(0, size)));
  }
  CHECK_FALSE(met.control.check(met.answer + "x"));
  CHECK_FALSE(met.rank_side.check(met.proved->reply + "x"));
  CHECK_FALSE(met.rank_side.check(met.proved->reply.substr(1)));
}

TEST_CASE("a sealed frame opens once, in its place, as what it was and unchanged", "[external]") {
  Met met;
  FrameSeal& out = met.seals->out;
  const std::string first = out.close(11, "first"), second = out.close(11, "second");
  const auto opened = [&met](uint16_t type, const std::string& sealed) {
    FrameSeal in = met.proved->seals.in;  // each time as it was before the first frame
    return in.open(type, sealed);
  };
  CHECK(opened(11, first) == "first");
  CHECK_FALSE(opened(11, second));                      // one left out
  CHECK_FALSE(opened(12, first));                       // another type
  CHECK_FALSE(opened(11, first.substr(1)));             // cut
  CHECK_FALSE(opened(11, ""));                          // nothing
  CHECK_FALSE(met.seals->in.open(11, first));           // back to its sender
  CHECK_FALSE(Met().proved->seals.in.open(11, first));  // on another connection
  for (size_t at = 0; at < first.size(); ++at) {
    std::string changed = first;
    changed[at] ^= 1;
    CHECK_FALSE(opened(11, changed));
  }
  FrameSeal& in = met.proved->seals.in;
  REQUIRE(in.open(11, first));
  CHECK_FALSE(in.open(11, first));  // repeated
  CHECK(in.open(11, second) == "second");
}

}  // namespace
}  // namespace shardproof::sim::world
