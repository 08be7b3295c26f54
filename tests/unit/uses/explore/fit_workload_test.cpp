// The options of a registered workload fit its mesh and each other.
#include <catch2/catch.hpp>
#include <set>

#include "sim/uses/explore/fitted_settings.h"

namespace shardproof::sim::explore {

TEST_CASE("options of a registered workload are fitted by the properties of their rows") {
  const WorkloadOptions options = {{"size", 5, "", CutOver{"tp"}},
                                   {"rows", 5, "", CutOver{"dp", "cut"}},
                                   {"cut", true},
                                   {"axis", "tp"},
                                   {"ranks", 1, "", CountsRanks{"dp", "axis"}},
                                   {"bias", true, "", NotBeside{true, "kind", "plain"}},
                                   {"kind", "usual"}};
  const auto fitted = [&](const nlohmann::json& given, const std::set<std::string>& fixed) {
    CaseSettings settings = {{"workload", "layer"},
                             {"parallel.tensor_parallel_size", 3},
                             {"parallel.data_parallel_size", 2},
                             {"options", given}};
    fit_sizes(settings, fixed, options);
    return settings;
  };
  const nlohmann::json empty = nlohmann::json::object();
  CHECK(fitted(empty, {})["options"] == nlohmann::json({{"size", 6}, {"rows", 6}, {"ranks", 3}}));
  CHECK(fitted({{"cut", false}}, {})["options"].count("rows") == 0);
  CHECK(fitted({{"axis", "dp"}}, {})["options"]["ranks"] == 2);
  CHECK(fitted({{"size", 4}}, {"options.layer.size"})["parallel.tensor_parallel_size"] == 2);
  CHECK(fitted({{"kind", "plain"}}, {})["options"]["bias"] == false);
  const auto kept = fitted({{"kind", "plain"}, {"bias", true}}, {"options.layer.bias"})["options"];
  CHECK(kept["bias"] == true);
  CHECK(kept.count("kind") == 0);
}

}  // namespace shardproof::sim::explore
