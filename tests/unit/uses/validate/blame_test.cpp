#include "sim/uses/validate/blame.h"

#include <catch2/catch.hpp>

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::validate;

namespace {

// Four hosts of two ranks.
Hosts four_hosts() {
  return hosts_of(std::vector<std::pair<std::string, std::string>>(8, {"machine", "boot"}), 2);
}

const std::vector<int64_t> kWorld = {0, 1, 2, 3, 4, 5, 6, 7};

WrongResult moved(int64_t sender, int64_t receiver) {
  return {.call = "send " + std::to_string(sender) + " -> " + std::to_string(receiver),
          .receiver = receiver,
          .group = {sender, receiver},
          .sender = sender,
          .damage = "altered",
          .pattern = "element 3 of 33"};
}

WrongResult reduced(const std::string& call, const std::vector<int64_t>& group, int64_t receiver,
                    std::vector<int64_t> sources = {}) {
  return {.call = call,
          .receiver = receiver,
          .group = group,
          .sources = std::move(sources),
          .damage = "altered",
          .pattern = "element 3 of 33"};
}

void reduce_on_all(std::vector<WrongResult>& evidence, const std::string& call,
                   const std::vector<int64_t>& group, const std::vector<int64_t>& sources = {}) {
  for (const int64_t rank : group) evidence.push_back(reduced(call, group, rank, sources));
}

std::vector<ValidationFinding> blamed(const std::vector<WrongResult>& evidence) {
  return blame(Stage::kPairs, 0, evidence, four_hosts());
}

ValidationFinding only_one(const std::vector<WrongResult>& evidence) {
  const auto findings = blamed(evidence);
  REQUIRE(findings.size() == 1);
  return findings[0];
}

}  // namespace

TEST_CASE("no evidence, no finding", "[validate]") { CHECK(blamed({}).empty()); }

TEST_CASE("a rank whose messages to several hosts are wrong is named", "[validate]") {
  const ValidationFinding found = only_one({moved(3, 0), moved(3, 4), moved(3, 7), moved(5, 3)});
  CHECK(found.hosts == std::vector<std::string>{"host1"});
  CHECK(found.ranks == std::vector<int64_t>{3});
  CHECK(found.link.empty());
}

TEST_CASE("a host of which several ranks' messages are wrong is named", "[validate]") {
  const ValidationFinding found = only_one({moved(2, 0), moved(3, 4), moved(3, 7), moved(6, 2)});
  CHECK(found.hosts == std::vector<std::string>{"host1"});
  CHECK(found.ranks == std::vector<int64_t>{2, 3});
}

TEST_CASE("wrong messages between two hosts alone are their link's", "[validate]") {
  const ValidationFinding found = only_one({moved(2, 6), moved(6, 2), moved(3, 7), moved(7, 3)});
  CHECK(found.link == "host1 - host3");
  CHECK(found.hosts == std::vector<std::string>{"host1", "host3"});
}

TEST_CASE("two hosts that spoil data are two findings", "[validate]") {
  const auto findings = blamed({moved(0, 2), moved(0, 4), moved(0, 6), moved(7, 3), moved(7, 4)});
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].hosts == std::vector<std::string>{"host0"});
  CHECK(findings[1].hosts == std::vector<std::string>{"host3"});
}

TEST_CASE("sums that are wrong on every member tell hosts apart by halves", "[validate]") {
  std::vector<WrongResult> evidence;
  reduce_on_all(evidence, "all_reduce(sum) world", kWorld);
  reduce_on_all(evidence, "all_reduce(sum) half0", {0, 1, 4, 5});
  CHECK(only_one(evidence).hosts == std::vector<std::string>{"host0", "host2"});  // one of them
  reduce_on_all(evidence, "all_reduce(sum) half1", {4, 5, 6, 7});
  CHECK(only_one(evidence).hosts == std::vector<std::string>{"host2"});
}

TEST_CASE("a sum that some members have wrong is theirs", "[validate]") {
  CHECK(only_one({reduced("all_reduce(sum) world", kWorld, 4),
                  reduced("all_reduce(max) world", kWorld, 4)})
            .ranks == std::vector<int64_t>{4});
}

TEST_CASE("a rank that has told all it may is not taken to have had a right sum", "[validate]") {
  // Rank 2 has the sum of 2 and 4 wrong too, after as many results as are kept.
  std::vector<WrongResult> evidence;
  for (size_t i = 0; i < kMaxEvidence; ++i) {
    const std::string call = "all_reduce(sum) round " + std::to_string(i);
    for (const int64_t rank : {2, 6}) evidence.push_back(reduced(call, {2, 6}, rank, {2}));
  }
  evidence.push_back(reduced("all_reduce(sum) last", {2, 4}, 4, {2}));
  CHECK(only_one(evidence).ranks == std::vector<int64_t>{2});
}

TEST_CASE("part of a reduce_scatter accuses its members, not the one that got it", "[validate]") {
  CHECK(only_one({reduced("reduce_scatter(sum) world", kWorld, 4)}).hosts.size() == 4);
}

TEST_CASE("addends lost in what one rank alone receives are that rank's", "[validate]") {
  // Each rank gets its own part: a bit that flips in what it receives may look like a lost addend.
  std::vector<WrongResult> evidence;
  for (const int64_t member : {1, 3, 5}) {
    const std::string call = "reduce_scatter(sum) round " + std::to_string(member);
    evidence.push_back(reduced(call, {member, 6}, 6, {member}));
  }
  CHECK(only_one(evidence).ranks == std::vector<int64_t>{6});
  // One that all members lack is lost where it was sent.
  evidence.clear();
  for (const int64_t receiver : {2, 4, 6}) {
    evidence.push_back(reduced("reduce_scatter(sum) world", {0, 2, 4, 6}, receiver, {0}));
  }
  CHECK(only_one(evidence).hosts == std::vector<std::string>{"host0"});
}

TEST_CASE("an addend that the codes name outweighs its group", "[validate]") {
  std::vector<WrongResult> evidence;
  reduce_on_all(evidence, "all_reduce(sum) world", kWorld, {6});
  CHECK(only_one(evidence).ranks == std::vector<int64_t>{6});
}

TEST_CASE("machines of one name are told apart by their boots", "[validate]") {
  const Hosts hosts = hosts_of({{"a", "1"}, {"a", "2"}, {"b", "3"}, {"a", "1"}}, 0);
  CHECK(hosts.names == std::vector<std::string>{"a (1)", "a (2)", "b"});
  CHECK(hosts.of_rank == std::vector<int64_t>{0, 1, 2, 0});
}

TEST_CASE("of ranks that did not finish, those that are not victims are named", "[validate]") {
  std::vector<RankEnding> endings(8);
  for (size_t rank = 0; rank < 8; ++rank) {
    endings[rank].rank = static_cast<int64_t>(rank);
    endings[rank].kind = rank / 2 == 1 ? ResultKind::kDied : ResultKind::kAborted;
    endings[rank].message = "signal 9";
  }
  bool lost = false;
  auto findings = findings_of_endings(endings, Stage::kPairs, 0, four_hosts(), lost);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].kind == FindingKind::kDied);
  CHECK(findings[0].hosts == std::vector<std::string>{"host1"});
  CHECK(findings[0].ranks == std::vector<int64_t>{2, 3});
  CHECK_FALSE(lost);
  for (RankEnding& ending : endings) ending.kind = ResultKind::kFinished;
  CHECK(findings_of_endings(endings, Stage::kPairs, 0, four_hosts(), lost).empty());
  for (RankEnding& ending : endings) ending.kind = ResultKind::kAborted;
  CHECK(findings_of_endings(endings, Stage::kPairs, 0, four_hosts(), lost).size() == 1);
  CHECK(lost);
}

TEST_CASE("the exit status is that of the worst finding", "[validate]") {
  const auto status = [](std::vector<FindingKind> kinds) {
    std::vector<ValidationFinding> findings;
    for (const FindingKind kind : kinds) findings.push_back({.kind = kind});
    return exit_status_of(findings);
  };
  CHECK(status({}) == 0);
  CHECK(status({FindingKind::kValues}) == 1);
  CHECK(status({FindingKind::kDigest}) == 1);
  CHECK(status({FindingKind::kValues, FindingKind::kSlow}) == 3);
  CHECK(status({FindingKind::kClock}) == 3);
  CHECK(status({FindingKind::kDied, FindingKind::kBadInput}) == 2);
}
