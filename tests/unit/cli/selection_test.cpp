#include "sim/cli/selection.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/said_by.h"
#include "tests/support/scratch_folder.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::cli;

namespace {

using Catch::Matchers::Contains;

// Two scenarios with four and two cases, one of them slow.
struct Scenarios : ScratchFolder {
  Scenarios() {
    write("a.yaml", "name: t/a\ntags: [alpha]\nmatrix: {seed: [1, 2, 3, 4]}\n");
    write("b.yaml",
          "name: t/b\ntags: [beta]\nmatrix: {rows: [{name: quick}, {name: long, tags: [slow]}]}\n");
  }
  RunArguments arguments() const {
    RunArguments run;
    run.paths = {path()};
    run.backends = {"emulated"};
    return run;
  }
};

std::vector<std::string> names_of(const RunArguments& arguments) {
  std::vector<std::string> names;
  for (const CaseSpec& spec : select_cases(arguments).cases) names.push_back(spec.name);
  return names;
}

std::string refusal(const RunArguments& arguments) {
  return tests::said_by([&] { select_cases(arguments); });
}

const std::vector<std::string> kUsual = {"t/a[seed=1]", "t/a[seed=2]", "t/a[seed=3]", "t/a[seed=4]",
                                         "t/b[quick]"};

}  // namespace

TEST_CASE("A folder's scenarios in the order of their names; slow ones when asked for", "[cli]") {
  const Scenarios scenarios;
  const auto names_with = [&](const std::function<void(RunArguments&)>& change) {
    RunArguments run = scenarios.arguments();
    change(run);
    return names_of(run);
  };
  using Names = std::vector<std::string>;
  CHECK(names_with([](RunArguments&) {}) == kUsual);
  CHECK(names_with([](RunArguments& run) { run.all_tags = true; }).size() == 6);
  CHECK(names_with([](RunArguments& run) { run.filters = {"slow"}; }) == Names{"t/b[long]"});
  CHECK(names_with([](RunArguments& run) { run.only = "t/b[long]"; }) == Names{"t/b[long]"});
  CHECK(names_with([&](RunArguments& run) { run.paths = {scenarios.path() + "/b.yaml"}; }).size() ==
        2);
  // Filters are pieces of names or whole tags, and all must fit.
  CHECK(names_with([](RunArguments& run) { run.filters = {"beta"}; }) == Names{"t/b[quick]"});
  CHECK(names_with([](RunArguments& run) {
          run.filters = {"alpha", "seed=3"};
        }) == Names{"t/a[seed=3]"});
  CHECK(names_with([](RunArguments& run) { run.filters = {"alp"}; }).empty());
}

TEST_CASE("A filter compares values, however they are written", "[cli]") {
  ScratchFolder folder;
  folder.write("a.yaml",
               "name: t/a\nmatrix:\n  case:\n    - {name: one, run.max_grad_norm: 1.0}\n"
               "    - {name: none, run.max_grad_norm: null}\n"
               "    - {name: half, run.max_grad_norm: 0.5, data.lengths: [5, 6]}\n");
  const auto chosen = [&](const std::string& filter) {
    RunArguments run;
    run.paths = {folder.path()};
    run.backends = {"emulated"};
    run.filters = {filter};
    std::vector<std::string> names;
    for (const CaseSpec& spec : select_cases(run).cases) names.push_back(spec.name);
    return names;
  };
  using Names = std::vector<std::string>;
  for (const char* text : {"1", "1.0", "1e0"})
    CHECK(chosen(std::string("max_grad_norm=") + text) == Names{"t/a[one]"});
  for (const char* text : {"null", "0", "0.0"})
    CHECK(chosen(std::string("run.max_grad_norm=") + text) == Names{"t/a[none]"});
  CHECK(chosen("max_grad_norm=5e-1") == Names{"t/a[half]"});
  CHECK(chosen("lengths=[5,6]") == Names{"t/a[half]"});
  CHECK(chosen("lengths=[5, 6]") == Names{"t/a[half]"});
  CHECK(chosen("world.backend=emulated").size() == 3);
  CHECK(chosen("precision=float64").size() == 3);
  CHECK(chosen("sequence_parallel=false").size() == 3);
  for (const char* nothing :
       {"world.backend=gloo", "max_grad_norm=2", "max_grad_norm=", "seed=null"})
    CHECK(chosen(nothing).empty());
}

TEST_CASE("Shards are disjoint and together everything", "[cli]") {
  const Scenarios scenarios;
  std::vector<std::string> together;
  for (int64_t shard = 1; shard <= 3; ++shard) {
    RunArguments run = scenarios.arguments();
    run.shard = shard;
    run.shard_count = 3;
    const auto names = names_of(run);
    CHECK(names.size() >= 1);
    together.insert(together.end(), names.begin(), names.end());
  }
  std::sort(together.begin(), together.end());
  CHECK(together == kUsual);
}

TEST_CASE("A shuffle keeps the cases, and the seed decides the order", "[cli]") {
  const Scenarios scenarios;
  RunArguments run = scenarios.arguments();
  std::set<std::vector<std::string>> orders;
  for (int64_t seed = 0; seed < 8; ++seed) {
    run.shuffle = seed;
    std::vector<std::string> names = names_of(run);
    CHECK(names == names_of(run));
    orders.insert(names);
    std::sort(names.begin(), names.end());
    CHECK(names == kUsual);
  }
  CHECK(orders.size() > 4);
}

TEST_CASE("Every backend is a case of its own; skips keep their reasons", "[cli]") {
  const Scenarios scenarios;
  scenarios.write("c.yaml", "name: t/c\nworld: {backend: gloo}\n");
  RunArguments run = scenarios.arguments();
  run.backends = {"emulated", "gloo"};
  run.filters = {"t/c"};
  const Selection selection = select_cases(run);
  REQUIRE(selection.cases.size() == 1);
  CHECK(selection.cases[0].world.backend == Backend::kGloo);
  REQUIRE(selection.skipped.size() == 1);
  CHECK_THAT(selection.skipped[0].skip, Contains("for gloo only"));
}

TEST_CASE("A seed from the command line replaces the scenario's", "[cli]") {
  const Scenarios scenarios;
  RunArguments run = scenarios.arguments();
  run.seed = 77;
  for (const CaseSpec& spec : select_cases(run).cases) CHECK(spec.seed == 77);
}

TEST_CASE("Every wrong file is told at once, and nothing is selected", "[cli]") {
  const Scenarios scenarios;
  scenarios.write("x.yaml", "sede: 1\n");
  scenarios.write("y.yaml", "model: {num_attention_heads: 7}\n");
  RunArguments run = scenarios.arguments();
  run.backends = {"emulated", "gloo"};
  const std::string text = refusal(run);
  CHECK_THAT(text, Contains("x.yaml:1:1: unknown key 'sede'"));
  CHECK_THAT(text, Contains("y.yaml:1: "));
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
}

TEST_CASE("Two files that make a case of one name are refused", "[cli]") {
  const Scenarios scenarios;
  scenarios.write("z.yaml", "name: t/a\nmatrix: {seed: [3]}\n");
  CHECK_THAT(refusal(scenarios.arguments()), Contains("both make the case t/a[seed=3]"));
}

TEST_CASE("An expanded case of an earlier run is a case of its own", "[cli]") {
  const Scenarios scenarios;
  CaseSpec spec = select_cases(scenarios.arguments()).cases[2];
  spec.world.backend = Backend::kGloo;
  scenarios.write("replay.json", to_json(spec).dump());
  RunArguments run;
  run.paths = {scenarios.path() + "/replay.json"};
  const Selection selection = select_cases(run);
  REQUIRE(selection.cases.size() == 1);
  CHECK(selection.cases[0].name == spec.name);
  CHECK(selection.cases[0].world.backend == Backend::kGloo);
  scenarios.write("replay.json", "{\"name\": 3}");
  CHECK_THAT(refusal(run), Contains("is not an expanded case"));
}
