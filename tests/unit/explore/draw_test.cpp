// Drawn cases: valid, replayable, with the pair that was missing.
#include "sim/explore/draw.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "sim/explore/fit.h"

namespace shardproof::sim {

namespace {

size_t kind_named(const Catalog& catalog, const std::string& name) {
  for (size_t kind = 0; kind < catalog.kinds().size(); ++kind) {
    if (catalog.describe(kind) == name) return kind;
  }
  FAIL("no kind " + name);
  return 0;
}

KindPair pair_of(const Catalog& catalog, const std::string& a, const std::string& b) {
  return std::minmax(kind_named(catalog, a), kind_named(catalog, b));
}

}  // namespace

TEST_CASE("each drawn case passes the checks before a run and has a new pair") {
  const Catalog catalog({}, {});
  PairCoverage coverage(catalog);
  Drawer drawer(catalog, {});
  std::mt19937_64 random(3);
  for (int i = 0; i < 30; ++i) {
    const CaseSettings settings = drawer.draw_missing(coverage, coverage, random);
    const CheckedCase checked = check_settings(settings, "t/drawn.yaml", {});
    INFO(settings.dump() << checked.sentence);
    REQUIRE(checked.spec.has_value());
    CHECK(checked.spec->parallel.world_size() <= kMostDrawnRanks);
    CHECK(checked.spec->faults.empty());
    CHECK(coverage.add(catalog.kinds_in(settings)) > 0);
  }
}

TEST_CASE("a seed draws the same cases again") {
  const Catalog catalog({}, {});
  const auto draw = [&] {
    PairCoverage coverage(catalog);
    Drawer drawer(catalog, {});
    std::mt19937_64 random(11);
    return drawer.draw_missing(coverage, coverage, random);
  };
  CHECK(draw() == draw());
}

TEST_CASE("a drawn pair brings what both of its values need") {
  const Catalog catalog({}, {});
  Drawer drawer(catalog, {});
  std::mt19937_64 random(5);
  const auto settings = drawer.draw(
      pair_of(catalog, "parallel.replicate_size=even", "run.optimizer.kwargs.nesterov=true"),
      random, 20);
  REQUIRE(settings.has_value());
  CHECK((*settings)["parallel.data_parallel"] == "hybrid");
  CHECK((*settings)["run.optimizer.name"] == "SGD");
  CHECK((*settings)["parallel.data_parallel_size"] > 1);
}

TEST_CASE("a pair that the checks always refuse is given up") {
  const Catalog catalog({}, {});
  Drawer drawer(catalog, {});
  std::mt19937_64 random(5);
  CHECK_FALSE(drawer.draw(pair_of(catalog, "run.optimizer.kwargs.amsgrad=true", "seed=default"),
                          random, 5));
  CHECK_FALSE(
      drawer.draw(pair_of(catalog, "workload=logprobs", "run.loss.kind=clipped_pg"), random, 5));
  CHECK(drawer.counts().refused > 0);
}

TEST_CASE("restricted options have the given names alone") {
  Catalog catalog({}, {});
  catalog.restrict_to("precision", {"bfloat16"});
  catalog.restrict_to("workload", {"logprobs"});
  PairCoverage coverage(catalog);
  Drawer drawer(catalog, {});
  std::mt19937_64 random(2);
  for (int i = 0; i < 10; ++i) {
    const CaseSettings settings = drawer.draw_missing(coverage, coverage, random);
    CHECK(settings["precision"] == "bfloat16");
    CHECK(settings["workload"] == "logprobs");
    coverage.add(catalog.kinds_in(settings));
  }
}

TEST_CASE("pairs are new once, and those given up are not missing") {
  const Catalog catalog({}, {});
  PairCoverage coverage(catalog);
  std::mt19937_64 random(1);
  const std::vector<size_t> kinds = catalog.kinds_in({});
  const auto count = static_cast<int64_t>(kinds.size());
  CHECK(coverage.add(kinds) == count * (count - 1) / 2);
  CHECK(coverage.add(kinds) == 0);
  for (int i = 0; i < 50; ++i) {
    const auto [pair, found] = coverage.missing_pair(random);
    REQUIRE(found);
    CHECK_FALSE(coverage.has_run(pair));
    coverage.give_up(pair);
  }
  CHECK(coverage.pairs_given_up() == 50);
  CHECK(coverage.pairs_run() == count * (count - 1) / 2);
}

TEST_CASE("sizes are fitted to the mesh, except those of the pair") {
  CaseSettings settings = {{"parallel.tensor_parallel_size", 3},
                           {"parallel.data_parallel_size", 8},
                           {"parallel.context_parallel_size", 4},
                           {"model.num_attention_heads", 4},
                           {"data.batch_size", 3}};
  fit_sizes(settings, {"parallel.tensor_parallel_size"});
  CHECK(settings["parallel.tensor_parallel_size"] == 3);
  CHECK(settings["model.num_attention_heads"] == 6);
  CHECK(check_settings(settings, "t/fit.yaml", {}).spec->parallel.world_size() <= kMostDrawnRanks);
}

TEST_CASE("kv heads that several ranks share are left") {
  const auto fitted = [](int64_t tp, int64_t heads, int64_t kv) {
    CaseSettings settings = {{"parallel.tensor_parallel_size", tp},
                             {"model.num_attention_heads", heads},
                             {"model.num_key_value_heads", kv}};
    fit_sizes(settings, {"parallel.tensor_parallel_size"});
    CHECK(check_settings(settings, "t/kv.yaml", {}).spec.has_value());
    return settings["model.num_key_value_heads"].get<int64_t>();
  };
  CHECK(fitted(4, 8, 2) == 2);
  CHECK(fitted(3, 3, 1) == 1);
  CHECK(fitted(4, 12, 3) != 3);  // neither divides the other
  CHECK(fitted(2, 8, 3) != 3);   // no even share of the query heads
}

}  // namespace shardproof::sim
