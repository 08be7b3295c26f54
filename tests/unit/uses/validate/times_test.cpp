#include "sim/uses/validate/times.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "sim/uses/validate/environment.h"
#include "sim/uses/validate/groups.h"
#include "sim/uses/validate/measure_times.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::validate;

namespace {

Hosts hosts_of_ranks(int64_t hosts, int64_t per_host) {
  return hosts_of(std::vector<std::pair<std::string, std::string>>(
                      static_cast<size_t>(hosts * per_host), {"machine", ""}),
                  per_host);
}

// Every pair takes 50 us, or `slow` us where one of the hosts is `host` or both are the link's.
Times times_with(const Hosts& hosts, double slow, int64_t host, std::pair<int64_t, int64_t> link) {
  Times times;
  const auto size = static_cast<int64_t>(hosts.of_rank.size());
  for (int64_t a = 0; a < size; ++a) {
    times.compute_ms.push_back(1);
    for (int64_t b = a + 1; b < size; ++b) {
      const bool touches = hosts.of(a) == host || hosts.of(b) == host;
      const bool is_link = std::pair(hosts.of(a), hosts.of(b)) == link;
      const double jitter = 1 + 0.1 * static_cast<double>((a * 7 + b * 3) % 5);
      times.pairs.push_back({a, b, (touches || is_link ? slow : 50) * jitter, 1});
    }
  }
  return times;
}

// How many other hosts the rank that has met fewest has met in the first `count` pairings.
int64_t fewest_hosts_met(const Hosts& hosts, const std::vector<int64_t>& pairings, int64_t count) {
  const int64_t size = std::ssize(hosts.of_rank);
  int64_t fewest = hosts.count();
  for (int64_t rank = 0; rank < size; ++rank) {
    std::set<int64_t> met = {hosts.of(rank)};
    for (int64_t i = 0; i < count; ++i) {
      const int64_t partner = partner_of(rank, size, pairings[static_cast<size_t>(i)]);
      if (partner >= 0) met.insert(hosts.of(partner));
    }
    fewest = std::min<int64_t>(fewest, std::ssize(met) - 1);
  }
  return fewest;
}

}  // namespace

TEST_CASE("nothing is slow beside its like", "[validate]") {
  const Hosts hosts = hosts_of_ranks(4, 2);
  CHECK(slow_ones(times_with(hosts, 50, -1, {-1, -1}), hosts, 3, 0).empty());
}

TEST_CASE("a host whose links are all slow is slow itself", "[validate]") {
  const Hosts hosts = hosts_of_ranks(4, 2);
  const auto findings = slow_ones(times_with(hosts, 1500, 2, {-1, -1}), hosts, 10, 0);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].kind == FindingKind::kSlow);
  CHECK(findings[0].hosts == std::vector<std::string>{"host2"});
  CHECK(findings[0].link.empty());
}

TEST_CASE("a host is surely slow with half of the other hosts, and 20 medians", "[validate]") {
  const Hosts hosts = hosts_of_ranks(8, 2);
  CHECK(surely_slow(times_with(hosts, 5000, 2, {-1, -1}), hosts) == std::vector<int64_t>{4, 5});
  CHECK(surely_slow(times_with(hosts, 700, 2, {-1, -1}), hosts).empty());
  CHECK(surely_slow(times_with(hosts, 5000, -1, {2, 3}), hosts).empty());  // a link
  Times few = times_with(hosts, 5000, 2, {-1, -1});
  std::erase_if(few.pairs, [&](const PairTime& pair) {
    return hosts.of(pair.a) == 2 ? hosts.of(pair.b) > 4 : hosts.of(pair.b) == 2 && pair.a == 0;
  });
  CHECK(surely_slow(few, hosts) == std::vector<int64_t>{4, 5});  // with hosts 0, 1, 3, 4
  std::erase_if(few.pairs, [&](const PairTime& pair) { return pair.a == 1 && pair.b == 5; });
  CHECK(surely_slow(few, hosts).empty());
}

TEST_CASE("one slow rank of a host is measured to the end, and its host is named", "[validate]") {
  const Hosts hosts = hosts_of_ranks(8, 2);
  Times times = times_with(hosts, 5000, 2, {-1, -1});
  const Times quick = times_with(hosts, 50, -1, {-1, -1});
  for (size_t i = 0; i < times.pairs.size(); ++i) {
    if (times.pairs[i].a != 4 && times.pairs[i].b != 4) times.pairs[i] = quick.pairs[i];
  }
  CHECK(surely_slow(times, hosts).empty());
  const auto findings = slow_ones(times, hosts, 10, 0);
  REQUIRE_FALSE(findings.empty());
  CHECK(findings[0].hosts == std::vector<std::string>{"host2"});
}

TEST_CASE("the first pairings let each rank meet half of the other hosts, three at least or all",
          "[validate]") {
  struct Mesh {
    int64_t hosts, per_host, enough, most;
  };
  for (const Mesh& mesh : {Mesh{64, 8, 32, 40}, {8, 8, 4, 6}, {4, 2, 3, 5}, {3, 1, 2, 3}}) {
    const Hosts hosts = hosts_of_ranks(mesh.hosts, mesh.per_host);
    for (const int64_t round : {0, 1, 3}) {
      INFO(mesh.hosts << " hosts of " << mesh.per_host << ", round " << round);
      const auto pairings = pairings_of(mesh.hosts * mesh.per_host, 64, round);
      const int64_t first = pairings_to_tell(hosts, pairings);
      CHECK(first <= mesh.most);
      CHECK(fewest_hosts_met(hosts, pairings, first) >= mesh.enough);
      CHECK(fewest_hosts_met(hosts, pairings, first - 1) < mesh.enough);
    }
  }
  CHECK(pairings_to_tell(hosts_of_ranks(1, 4), pairings_of(4, 64, 0)) == 3);  // nothing to tell
}

TEST_CASE("the pairings of following rounds are all of them, each once", "[validate]") {
  for (const auto& [size, most] : {std::pair(9, 3), {2, 1}, {8, 64}, {64, 21}, {512, 73}}) {
    std::vector<int64_t> made, all;
    for (int64_t i = 0; i < pairing_rounds(size); ++i) all.push_back(i);
    for (int64_t round = 0; made.size() < all.size(); ++round) {
      for (const int64_t one : pairings_of(size, most, round)) made.push_back(one);
    }
    std::sort(made.begin(), made.end());
    INFO(size << " ranks");
    CHECK(made == all);
  }
  CHECK(pairings_of(1, 64, 0).empty());
}

TEST_CASE("what is slow is measured again, but not with ranks that surely are", "[validate]") {
  const Hosts hosts = hosts_of_ranks(8, 2);
  Times times = times_with(hosts, 5000, 1, {-1, -1});
  CHECK(doubtful_pairs(times, hosts, 20).empty());
  for (PairTime& pair : times.pairs) {
    if (pair.a == 0 && pair.b == 6) pair.latency_us = 5000;
    if (pair.a == 4 && pair.b == 5) pair.gb_per_s = 0.01;
  }
  CHECK(doubtful_pairs(times, hosts, 20) == std::vector<RankPair>{{0, 6}, {4, 5}});
}

// Host 3 is slow. Others are busy when they are first measured: host 5 in the first two brief
// parts, ranks 0 and 1 with each other until the last part, and rank 4 alone until the first
// repeat.
TEST_CASE("times leaves out a rank that is slow every time, and repeats what else seems to be",
          "[validate]") {
  const Hosts hosts = hosts_of_ranks(8, 2);
  std::vector<int64_t> members(16);
  std::iota(members.begin(), members.end(), 0);
  const auto pairings = pairings_of(16, 64, 0);
  std::vector<PairingsPart> parts;
  const auto run = [&](const PairingsPart& part) {
    parts.push_back(part);
    std::map<int64_t, StageReport> reports;
    for (const int64_t rank : members) {
      nlohmann::json pairs = nlohmann::json::array();
      for (int64_t i = 0; i < part.count; ++i) {
        const int64_t other = partner_of(rank, 16, pairings[static_cast<size_t>(i)]);
        if (std::ranges::count(part.left_out, rank) + std::ranges::count(part.left_out, other) >
            0) {
          continue;
        }
        if (other < rank || (part.again && *part.again != std::vector<RankPair>{{rank, other}})) {
          continue;
        }
        const bool slow_host = rank / 2 == 3 || other / 2 == 3;
        const bool busy_host = parts.size() <= 2 && (rank / 2 == 5 || other / 2 == 5);
        const bool noise = rank == 0 && other == 1 && parts.size() < 6;
        pairs.push_back({other, slow_host || busy_host || noise ? 5000 : 50, 1});
      }
      const bool computes = part.briefly || part.again;
      const double computing = !computes ? 0 : rank == 4 && !part.again ? 900 : 1;
      reports[rank].json = {{"pairs", pairs}, {"compute_ms", computing}};
    }
    return reports;
  };
  const auto times = measure_times(hosts, members, pairings, 20, run);
  REQUIRE(times.has_value());
  REQUIRE(parts.size() == 6);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(parts[i].briefly);
    CHECK(parts[i].count < 15);
  }
  CHECK_FALSE(parts[3].briefly);
  CHECK(parts[3].count == 15);
  CHECK(parts[3].left_out == std::vector<int64_t>{6, 7});
  CHECK(parts[4].again == std::vector<RankPair>{{0, 1}});
  CHECK(parts[5].again == std::vector<RankPair>{{0, 1}});
  const auto slow = slow_ones(*times, hosts, 20, 0);
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].hosts == std::vector<std::string>{"host3"});
  CHECK(times->compute_ms == std::vector<double>(16, 1));
  // Ranks 6 and 7 have only the pairs that showed it.
  const auto of_host3 = std::ranges::count_if(
      times->pairs, [](const PairTime& pair) { return pair.a / 2 == 3 || pair.b / 2 == 3; });
  CHECK(of_host3 < 2 * 14 + 1);
  CHECK(std::ssize(times->pairs) == 14 * 13 / 2 + of_host3);
  parts.clear();
  CHECK(measure_times(hosts, members, pairings, 0, run).has_value());  // nothing is too slow
  CHECK(parts.size() == 4);
  const auto none = [](const PairingsPart&) { return std::map<int64_t, StageReport>(); };
  CHECK_FALSE(measure_times(hosts, members, pairings, 20, none).has_value());
}

TEST_CASE("one slow link is named by its two hosts", "[validate]") {
  const Hosts hosts = hosts_of_ranks(4, 1);
  const auto findings = slow_ones(times_with(hosts, 1500, -1, {1, 3}), hosts, 10, 0);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].link == "host1 - host3");
}

TEST_CASE("a link of little bandwidth is slow", "[validate]") {
  const Hosts hosts = hosts_of_ranks(4, 1);
  Times times = times_with(hosts, 50, -1, {-1, -1});
  times.pairs[0].gb_per_s = 0.01;
  const auto findings = slow_ones(times, hosts, 20, 0);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].link == "host0 - host1");
}

TEST_CASE("a rank whose arithmetic is slow is named", "[validate]") {
  const Hosts hosts = hosts_of_ranks(4, 2);
  Times times = times_with(hosts, 50, -1, {-1, -1});
  times.compute_ms[5] = 30;
  const auto findings = slow_ones(times, hosts, 20, 0);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].ranks == std::vector<int64_t>{5});
  CHECK(findings[0].hosts == std::vector<std::string>{"host2"});
}

TEST_CASE("pairs within hosts and between them have medians of their own", "[validate]") {
  const Hosts hosts = hosts_of_ranks(4, 2);
  Times times = times_with(hosts, 50, -1, {-1, -1});
  for (PairTime& pair : times.pairs) {
    if (hosts.of(pair.a) == hosts.of(pair.b)) pair.latency_us = 0.5;
  }
  CHECK(slow_ones(times, hosts, 10, 0).empty());
}

TEST_CASE("a fact that most hosts share marks the odd ones out", "[validate]") {
  const Facts usual = {{"cpu", "A"}, {"libtorch", "2"}, {"host", "x"}};
  std::vector<Facts> facts(4, usual);
  CHECK(odd_facts(facts).empty());
  facts[2]["cpu"] = "B";
  facts[2]["host"] = "y";  // differs by its nature
  facts[3].erase("libtorch");
  const auto odd = odd_facts(facts);
  REQUIRE(odd.size() == 2);
  CHECK(odd[0].host == 2);
  CHECK(odd[0].value == "B");
  CHECK(odd[1].host == 3);
  CHECK(odd[1].fact == "libtorch");
  CHECK(odd[1].value.empty());
}

TEST_CASE("where no value is the usual one, no host is odd", "[validate]") {
  CHECK(odd_facts({{{"cpu", "A"}}, {{"cpu", "B"}}}).empty());
}

TEST_CASE("a clock is off beyond the limit and the uncertainty of its time", "[validate]") {
  const Hosts hosts = hosts_of_ranks(4, 1);
  std::vector<ClockOffset> clocks = {{0, 0}, {0.001, 0.01}, {-0.002, 0.01}, {1.5, 0.01}};
  auto off = clocks_off(clocks, hosts, 1);
  REQUIRE(off.size() == 1);
  CHECK(off[0].hosts == std::vector<std::string>{"host3"});
  CHECK(off[0].kind == FindingKind::kClock);
  clocks[3].uncertainty = 0.9;
  CHECK(clocks_off(clocks, hosts, 1).empty());
  // Rank 0's own clock is wrong: the others agree with each other.
  clocks = {{0, 0}, {-9, 0.01}, {-9, 0.01}, {-9.001, 0.01}};
  off = clocks_off(clocks, hosts, 1);
  REQUIRE(off.size() == 1);
  CHECK(off[0].hosts == std::vector<std::string>{"host0"});
  // A host counts once, however many ranks it has.
  clocks = {{0, 0}, {0, 0.01}, {0, 0.01}, {-9, 0.01}, {-9, 0.01}};
  off = clocks_off(clocks, {.names = {"a", "b", "c"}, .of_rank = {0, 0, 0, 1, 2}}, 1);
  REQUIRE(off.size() == 1);
  CHECK(off[0].hosts == std::vector<std::string>{"a"});
  // Of two neither is the usual one.
  off = clocks_off({{0, 0}, {-9, 0.01}}, hosts_of_ranks(2, 1), 1);
  REQUIRE(off.size() == 1);
  CHECK(off[0].hosts == std::vector<std::string>{"host0", "host1"});
  CHECK(off[0].ranks == std::vector<int64_t>{0, 1});
}

TEST_CASE("this machine has facts", "[validate]") {
  const Facts facts = machine_facts();
  for (const char* name :
       {"host", "boot", "kernel", "cores", "memory_gib", "libtorch", "limit_open_files"}) {
    INFO(name);
    CHECK(facts.count(name) == 1);
    CHECK_FALSE(facts.at(name).empty());
  }
}
