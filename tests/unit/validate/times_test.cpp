#include "sim/validate/times.h"

#include <catch2/catch.hpp>

#include "sim/validate/environment.h"

using namespace shardproof;
using namespace shardproof::sim;

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
