// Tests the scenario reader with any text.
#include "sim/case/scenario/scenario.h"

#include <set>

#include "tests/fuzz/promise.h"

namespace shardproof::fuzz {
namespace {

using sim::CaseSpec;

constexpr int64_t kMostRanks = 65536;
constexpr size_t kCheckedCases = 20;  // of a matrix; a scenario may have thousands

const sim::WorldChoice& world() {
  static const sim::WorldChoice choice{
      .workloads = {{.name = "scale_rows",
                     .about = "A registered workload",
                     .options = {{"rows", 4}, {"rate", 0.5}, {"bias", true}, {"style", "plain"}}}}};
  return choice;
}

// Workers get a case as JSON text and read it back.
void check_case(const CaseSpec& spec) {
  const std::string text = to_json(spec).dump();
  const CaseSpec back = sim::case_spec_from_json(nlohmann::json::parse(text));
  promise(to_json(back).dump() == text, "a case changed on its way to the worker: " + text);
  promise(spec.skip.empty() || is_printable(spec.skip), "a skip's reason cannot be shown");
  if (!spec.skip.empty()) return;
  const int64_t ranks = spec.parallel.mesh().world_size();
  promise(ranks >= 1 && ranks <= kMostRanks, "a world of " + std::to_string(ranks) + " ranks");
}

}  // namespace

Ending read_scenario(std::string_view bytes) {
  return value_or_sentence([&] {
    const sim::Scenario scenario =
        sim::parse_scenario_text("scenarios/fuzz/input.yaml", std::string(bytes), world());
    promise(!scenario.cases.empty(), "a scenario without cases");
    std::set<std::string> names;
    for (const CaseSpec& spec : scenario.cases) {
      promise(is_printable(spec.name), "a case's name cannot be shown");
      promise(names.insert(spec.name).second, "two cases are named " + spec.name);
      if (names.size() <= kCheckedCases) check_case(spec);
    }
  });
}

}  // namespace shardproof::fuzz
