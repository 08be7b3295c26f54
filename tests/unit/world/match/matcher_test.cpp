// The matching of calls, with lines in orders in which a control process may read them.
// tests/multirank/worlds_test.cpp has the differences of two calls, and calls of a rank that has
// ended.
#include "sim/world/match/matcher.h"

#include <catch2/catch.hpp>

namespace shardproof::sim::world {
namespace {

using Catch::Matchers::Contains;

// One rank's view of a group, which makes lines with increasing numbers.
struct Side {
  int64_t rank;
  std::string name;
  std::vector<int64_t> ranks;
  int64_t next = 0;  // call number

  CallLine call(Op op, const std::string& label, bool asynchronous = false) {
    int64_t own = 0;
    while (ranks[static_cast<size_t>(own)] != rank) ++own;
    CallLine line;
    line.rank = rank;
    line.group = name;
    line.group_rank = own;
    line.sequence = next++;
    line.op = op;
    line.label = label;
    line.dtype = "float64";
    line.group_ranks = std::make_shared<const std::vector<int64_t>>(ranks);
    line.shape = {4};
    if (op == Op::kAllReduce) line.reduce = ReduceOp::kSum;
    line.asynchronous = asynchronous;
    return line;
  }
};

CallLine wait_for(CallLine line) {
  line.waiting = true;
  return line;
}

TEST_CASE("a line survives its way to control", "[comm][match]") {
  Side side{.rank = 3, .name = "tp[2,3]", .ranks = {2, 3}, .next = 41};
  CallLine line = side.call(Op::kAllToAll, "a label\twith\ttabs,\nlines and \\ 'quotes'", true);
  line.strides = {1};
  line.split_sizes = {1, 3};
  line.output_sizes = {0, 4};
  line.dim = 2;
  line.root = 1;
  line.tag = -7;
  line.waiting = true;
  const std::string text = encode_line(line);
  const auto back = decode_line(text);
  REQUIRE(back);
  CHECK(back->label == line.label);
  CHECK(*back->group_ranks == *line.group_ranks);
  CHECK(back->split_sizes == line.split_sizes);
  CHECK(back->output_sizes == line.output_sizes);
  CHECK(back->sequence == 41);
  CHECK(back->tag == -7);
  CHECK(back->waiting);
  CHECK(encode_line(*back) == text);
}

TEST_CASE("malformed lines are refused, never a crash", "[comm][match]") {
  Side side{.rank = 0, .name = "tp[0,1]", .ranks = {0, 1}, .next = 0};
  const std::string good = encode_line(side.call(Op::kAllReduce, "x"));
  for (size_t cut = 0; cut < good.size(); ++cut) CHECK(!decode_line(good.substr(0, cut)));
  CHECK(!decode_line(good + "\t1"));
  CHECK(!decode_line("a" + good));
  CHECK(!decode_line(good.substr(0, good.size() - 1) + "2"));
  CHECK(decode_line(good));
}

TEST_CASE("a group put together anew begins at 0, and control may hear of it out of order",
          "[comm][match]") {
  const auto life = [](int64_t rank) {
    return Side{.rank = rank, .name = "w", .ranks = {0, 1, 2}};
  };
  Matcher matcher(3);
  // Rank 0 has made its last call of the first life before ranks 1 and 2 make their first.
  Side zero = life(0), zero_again = life(0);
  CHECK_FALSE(matcher.line(zero.call(Op::kBroadcast, "first")));
  CHECK_FALSE(matcher.line(zero.call(Op::kBarrier, "end of a life")));
  CHECK_FALSE(matcher.line(zero_again.call(Op::kAllGather, "second life")));
  for (const int64_t rank : {2, 1}) {
    Side side = life(rank), again = life(rank);
    CHECK_FALSE(matcher.line(side.call(Op::kBroadcast, "first")));
    CHECK_FALSE(matcher.line(side.call(Op::kBarrier, "end of a life")));
    if (rank == 1) CHECK_FALSE(matcher.wait_of(0).empty());  // in the second life, for rank 1
    CHECK_FALSE(matcher.line(again.call(Op::kAllGather, "second life")));
  }
  CHECK(matcher.wait_of(0).empty());
  // A disagreement in the second life is found.
  CHECK_FALSE(matcher.line(zero_again.call(Op::kAllReduce, "norm")));
  Side two_again = life(2);
  two_again.next = 1;
  const auto finding = matcher.line(two_again.call(Op::kBarrier, "end of a life"));
  REQUIRE(finding);
  CHECK(finding->code == "disagreement");
  CHECK(finding->ranks == std::vector<int64_t>{0, 2});
}

TEST_CASE("the first finding stands, whatever lines were already under way", "[comm][match]") {
  Matcher matcher(3);
  const std::vector<int64_t> ranks{0, 1, 2};
  Side a{0, "dp[0,1,2]", ranks}, b{1, "dp[0,1,2]", ranks}, c{2, "dp[0,1,2]", ranks};
  CHECK(!matcher.line(c.call(Op::kAllReduce, "loss")));
  CHECK(!matcher.line(a.call(Op::kAllReduce, "loss", true)));
  const CallLine wrong = b.call(Op::kAllGather, "weights", true);
  const auto finding = matcher.line(wrong);
  REQUIRE(finding);
  CHECK(finding->code == "disagreement");
  CHECK(finding->ranks == std::vector<int64_t>{0, 1});
  CHECK_THAT(finding->message, Contains("ranks 0 and 1 disagree on call 0 of dp[0,1,2]"));

  CHECK(!matcher.line(wait_for(wrong)));  // no rank waits in such a call
  CHECK(matcher.wait_of(1) == "");
  CHECK(!matcher.line(a.call(Op::kBroadcast, "next")));
  CHECK_THAT(matcher.last_call(0), Contains("broadcast") && Contains("'next'"));
  CHECK_THAT(matcher.wait_of(2), Contains("rank 2 waits for rank 1 in all_reduce(sum)"));
  for (const int64_t rank : ranks) CHECK(!matcher.ended(rank));  // else a deadlock
}

TEST_CASE("a cycle across groups is found when it closes, while other ranks still run",
          "[comm][match]") {
  Matcher matcher(5);
  Side tp0{0, "tp[0,1]", {0, 1}}, dp1{1, "dp[1,3]", {1, 3}}, tp3{3, "tp[2,3]", {2, 3}},
      dp2{2, "dp[0,2]", {0, 2}};
  CHECK(!matcher.line(tp0.call(Op::kAllReduce, "tp of 0")));
  CHECK(!matcher.line(dp1.call(Op::kAllReduce, "dp of 1")));
  CHECK(!matcher.line(tp3.call(Op::kAllReduce, "tp of 3")));
  const auto finding = matcher.line(dp2.call(Op::kAllReduce, "dp of 2"));
  REQUIRE(finding);
  CHECK(finding->code == "deadlock");
  CHECK(finding->ranks == std::vector<int64_t>{0, 1, 2, 3});
  CHECK_THAT(finding->message, Contains("rank 0 waits for rank 1 in all_reduce(sum) tp[0,1]") &&
                                   Contains("'dp of 2'"));
}

TEST_CASE("asynchronous calls in opposite order deadlock only when both wait", "[comm][match]") {
  Matcher matcher(2);
  Side a0{0, "a[0,1]", {0, 1}}, b0{0, "b[0,1]", {0, 1}}, a1{1, "a[0,1]", {0, 1}},
      b1{1, "b[0,1]", {0, 1}};
  const CallLine a_of_0 = a0.call(Op::kAllReduce, "a", true),
                 b_of_1 = b1.call(Op::kAllReduce, "b", true);
  CHECK(!matcher.line(a_of_0));
  CHECK(!matcher.line(b_of_1));
  SECTION("both go on: no finding") {
    const CallLine b_of_0 = b0.call(Op::kAllReduce, "b", true),
                   a_of_1 = a1.call(Op::kAllReduce, "a", true);
    for (const CallLine& started : {b_of_0, a_of_1}) CHECK(!matcher.line(started));
    for (const CallLine& waited : {a_of_0, b_of_1, b_of_0, a_of_1}) {
      CHECK(!matcher.line(wait_for(waited)));
    }
    CHECK(!matcher.ended(0));
    CHECK(!matcher.ended(1));
  }
  SECTION("both wait first") {
    CHECK(!matcher.line(wait_for(a_of_0)));
    const auto finding = matcher.line(wait_for(b_of_1));
    REQUIRE(finding);
    CHECK(finding->code == "deadlock");
  }
}

TEST_CASE("an asynchronous call that its rank did not wait for is found when the rank ends",
          "[comm][match]") {
  Matcher matcher(2);
  Side a{0, "dp[0,1]", {0, 1}}, b{1, "dp[0,1]", {0, 1}};
  const CallLine waited = a.call(Op::kAllReduce, "grad bucket 0", true);
  CHECK(!matcher.line(waited));
  CHECK(!matcher.line(a.call(Op::kAllReduce, "grad bucket 1", true)));
  CHECK(!matcher.line(b.call(Op::kAllReduce, "grad bucket 0")));
  CHECK(!matcher.line(wait_for(waited)));
  SECTION("whether or not its peers have come") {
    if (GENERATE(false, true)) CHECK(!matcher.line(b.call(Op::kAllReduce, "grad bucket 1")));
    const auto finding = matcher.ended(0);
    REQUIRE(finding);
    CHECK(finding->code == "never_waited");
    CHECK(finding->ranks == std::vector<int64_t>{0});
    CHECK_THAT(finding->message, Contains("rank 0 started all_reduce(sum) dp[0,1]") &&
                                     Contains("'grad bucket 1' (call 1) and never waited for it"));
  }
  SECTION("also when it has put the group together anew since") {
    Side again{0, "dp[0,1]", {0, 1}};
    const CallLine second = again.call(Op::kAllReduce, "second life", true);
    CHECK(!matcher.line(second));
    CHECK(!matcher.line(b.call(Op::kAllReduce, "grad bucket 1")));
    CallLine first = waited;
    first.sequence = 1;
    CHECK(!matcher.line(wait_for(first)));
    Side b_again{1, "dp[0,1]", {0, 1}};
    CHECK(!matcher.line(b_again.call(Op::kAllReduce, "second life")));
    CHECK(!matcher.line(wait_for(second)));
    CHECK(!matcher.ended(0));
  }
}

TEST_CASE("of the cycles that one call closes the shortest is told", "[comm][match]") {
  Matcher matcher(3);
  Side one{1, "tp[0,1]", {0, 1}}, two{2, "cp[1,2]", {1, 2}}, zero{0, "ep[0,2,1]", {0, 2, 1}};
  CHECK(!matcher.line(one.call(Op::kAllReduce, "of 1")));
  CHECK(!matcher.line(two.call(Op::kAllReduce, "of 2")));
  const auto finding =
      matcher.line(zero.call(Op::kAllReduce, "of 0"));  // 0 -> 1 or 0 -> 2 -> 1 -> 0
  REQUIRE(finding);
  CHECK(finding->ranks == std::vector<int64_t>{0, 1});
}

TEST_CASE("long lists of ranks are cut", "[comm][match]") {
  std::vector<int64_t> ranks(20);
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int64_t>(i);
  Matcher matcher(20);
  Side first{0, "world", ranks};
  CHECK(!matcher.line(first.call(Op::kAllReduce, "x")));
  CHECK_THAT(matcher.wait_of(0), Contains("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 more in"));
}

TEST_CASE("messages are matched by their two ends and tag", "[comm][match]") {
  Matcher matcher(3);
  const std::vector<int64_t> ranks{0, 1, 2};
  Side a{0, "cp[0,1,2]", ranks}, b{1, "cp[0,1,2]", ranks};
  CallLine sent = a.call(Op::kSend, "kv");
  CallLine taken = b.call(Op::kRecv, "kv of my neighbour");
  sent.root = 1;
  taken.root = 0;
  CHECK(!matcher.line(sent));
  CHECK(!matcher.line(taken));
  CHECK(matcher.wait_of(0) == "");
}

}  // namespace
}  // namespace shardproof::sim::world
