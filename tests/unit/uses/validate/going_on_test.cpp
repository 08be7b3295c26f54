#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "sim/uses/validate/blame.h"

using namespace shardproof::sim;
using namespace shardproof::sim::validate;

namespace {

using Numbers = std::vector<int64_t>;

// Runs that end when one of `bad` takes part; `named`: whether somebody knows which it was.
struct Machines {
  std::set<int64_t> bad;
  bool named = true;
  std::vector<Numbers> runs = {};

  HostsRun operator()(const Numbers& hosts) {
    runs.push_back(hosts);
    HostsRun run;
    for (const int64_t host : hosts) {
      if (bad.count(host) == 0) continue;
      run.finished = false;
      if (named) run.stopped.push_back(host);
    }
    return run;
  }
};

HostsTried try_all(Machines& machines, int64_t count) {
  Numbers hosts;
  for (int64_t host = 0; host < count; ++host) hosts.push_back(host);
  HostsTried all = run_on_hosts(hosts, [&](const Numbers& some) { return machines(some); });
  std::sort(all.left_out.begin(), all.left_out.end());
  return all;
}

}  // namespace

TEST_CASE("hosts that all finish run once", "[validate]") {
  Machines machines{{}};
  CHECK(try_all(machines, 4).left_out.empty());
  CHECK(machines.runs == std::vector<Numbers>{{0, 1, 2, 3}});
}

TEST_CASE("the others go on without a host that is named", "[validate]") {
  Machines machines{{1}};
  const HostsTried all = try_all(machines, 4);
  CHECK(all.left_out == Numbers{1});
  CHECK(all.finished == Numbers{0, 2, 3});
  CHECK(machines.runs == std::vector<Numbers>{{0, 1, 2, 3}, {0, 2, 3}});
}

TEST_CASE("halves find a host that nobody names, and the rest runs together", "[validate]") {
  for (const Numbers& bad : {Numbers{5}, Numbers{0}, Numbers{2, 7}}) {
    Machines machines{{bad.begin(), bad.end()}, /*named=*/false};
    const HostsTried all = try_all(machines, 8);
    CHECK(all.left_out == bad);
    CHECK(all.finished.size() == 8 - bad.size());
    CHECK(machines.runs.back() == all.finished);
    CHECK(machines.runs.size() <= 2 + 6 * bad.size());
  }
}

TEST_CASE("a host alone that does not finish leaves nobody", "[validate]") {
  Machines machines{{0}};
  const HostsTried all = try_all(machines, 1);
  CHECK(all.finished.empty());
  CHECK(all.left_out == Numbers{0});
  CHECK(machines.runs.size() == 1);
}

TEST_CASE("hosts that finish apart and not together are not left out", "[validate]") {
  int64_t runs = 0;
  const HostsTried all = run_on_hosts({0, 1, 2, 3}, [&](const Numbers& hosts) {
    ++runs;
    return HostsRun{.finished = hosts.size() < 4};
  });
  CHECK(all.left_out.empty());
  CHECK(all.finished.size() == 4);
  CHECK(runs == 3);
}
