// Drawn cases leave out what ranks would refuse.
#include "sim/uses/explore/fit.h"

#include <catch2/catch.hpp>

#include "base/families.h"
#include "sim/uses/explore/draw.h"

namespace shardproof::sim::explore {

TEST_CASE("stages of a policy below float64 are drawn without experts") {
  Catalog catalog({}, {});
  catalog.restrict_to("workload", {"policy"});
  catalog.restrict_to("precision", {"float16"});
  PairCoverage coverage(catalog);
  Drawer drawer(catalog, {});
  std::mt19937_64 random(7);
  for (int i = 0; i < 20; ++i) {
    const CaseSettings settings = drawer.draw_missing(coverage, coverage, random);
    const std::string family = setting_of(settings, "model.family");
    INFO(settings.dump());
    CHECK_FALSE(family_traits(family).has_experts());
    coverage.add(catalog.kinds_in(settings));
  }
}

TEST_CASE("the experts of a policy run in float64, and those of training in any precision") {
  const auto refused = [](const char* family, const char* workload, const char* precision) {
    return is_refused({{"model.family", family}, {"workload", workload}, {"precision", precision}});
  };
  CHECK(refused("mixtral", "policy", "float16"));
  CHECK(refused("gpt_oss", "policy", "bfloat16"));
  CHECK_FALSE(refused("mixtral", "policy", "float64"));
  CHECK_FALSE(refused("mixtral", "train", "float16"));
  CHECK_FALSE(refused("llama", "policy", "float16"));
}

}  // namespace shardproof::sim::explore
