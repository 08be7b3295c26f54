// Drawn cases leave out what ranks would refuse.
#include <catch2/catch.hpp>

#include "base/families.h"
#include "sim/uses/explore/draw.h"
#include "sim/uses/explore/fitted_settings.h"

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

TEST_CASE("a wide matrix that every rank makes orthogonal is no small case") {
  CaseSettings settings = {{"workload", "train"},           {"model.family", "deepseek_v3"},
                           {"model.hidden_size", 1025},     {"model.head_dim", 4},
                           {"model.num_hidden_layers", 1},  {"model.vocab_size", 4},
                           {"data.lengths", {16, 1, 9}},    {"parallel.tensor_parallel_size", 2},
                           {"model.num_attention_heads", 8}};
  const auto small = [&](const char* optimizer, int64_t heads) {
    settings["run.optimizer.name"] = optimizer;
    settings["model.num_nextn_predict_layers"] = heads;
    return is_small(*check_settings(settings, "t/wide.yaml", {}).spec);
  };
  CHECK(small("AdamW", 8));
  CHECK(small("Muon", 0));
  CHECK_FALSE(small("Muon", 8));  // of each extra head a matrix of 1025 x 2050
}

}  // namespace shardproof::sim::explore
