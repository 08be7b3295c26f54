// fuzz: what to draw, and how a round runs.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "sim/case/names.h"
#include "sim/case/scenario/schema.h"
#include "sim/cli/machine.h"
#include "sim/cli/outputs.h"
#include "sim/cli/uses/uses_commands.h"
#include "sim/lint/case_reader.h"
#include "sim/uses/explore/fuzz.h"

namespace shardproof::sim::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The settings of the repository's cases that match, for options whose values are texts and maps.
std::vector<explore::CaseSettings> settings_of_repository(const WorldChoice& world) {
  std::vector<explore::CaseSettings> all;
  const std::string folder = lint::find_in_repository("scenarios");
  if (folder.empty()) return all;
  for (const std::string& file : lint::find_scenario_files({folder})) {
    Scenario scenario = parse_scenario(file, world);
    for (size_t i = 0; i < scenario.cases.size(); ++i) {
      const CaseSpec& spec = scenario.cases[i];
      const bool is_empty = spec.expect.nothing_counted && !is_model_workload(spec.workload);
      if (spec.expect.verdict != Verdict::kMatch || !spec.faults.empty() || !spec.skip.empty() ||
          is_empty)
        continue;
      explore::CaseSettings settings = std::move(scenario.settings[i]);
      for (const char* label : {"name", "tags", "expect.verdict", "expect.collectives", "judged"}) {
        settings.erase(label);
      }
      all.push_back(std::move(settings));
    }
  }
  return all;
}

// Of "parallel.pipeline_parallel_size=2,4".
void restrict_by(explore::Catalog& catalog, const std::string& text) {
  const size_t equals = text.find('=');
  const std::string path = text.substr(0, equals);
  const auto& options = catalog.options();
  const auto found = std::find_if(options.begin(), options.end(), [&](const auto& option) {
    return option.path == path && option.records.empty() && option.workload.empty();
  });
  if (equals == text.npos || found == options.end()) {
    throw_bad_input(fmt::format("--set {}: {}", text,
                                equals == text.npos ? "a value is missing"
                                                    : "no option with this key is drawn"),
                    "give a key of a scenario file and its values, as in "
                    "parallel.pipeline_parallel_size=2,4");
  }
  const std::string flag = "--set " + path;
  Option named = *found;
  named.flag.names = flag.c_str();  // of errors
  std::vector<json> values;
  std::istringstream words(text.substr(equals + 1));
  for (std::string word; std::getline(words, word, ',');) {
    values.push_back(Schema::checked_flag(named, word));
  }
  if (values.empty())
    throw_bad_input(fmt::format("--set {}: a value is missing", text), "give one");
  catalog.restrict_to(path, std::move(values));
}

// The last of two would replace the other.
void require_once(const ExploreArguments& explore) {
  std::vector<std::string> paths;
  if (!explore.precisions.empty()) paths.emplace_back("precision");
  if (!explore.workloads.empty()) paths.emplace_back("workload");
  for (const std::string& text : explore.set) paths.push_back(text.substr(0, text.find('=')));
  std::ranges::sort(paths);
  const auto twice = std::ranges::adjacent_find(paths);
  if (twice == paths.end()) return;
  throw_bad_input(fmt::format("the values of {} are restricted twice", *twice),
                  "give all of them at once");
}

explore::Catalog catalog_for(const ExploreArguments& explore, const WorldChoice& world) {
  require_once(explore);
  std::vector<std::string> known = known_workloads();
  for (const KnownWorkload& one : world.workloads) known.push_back(one.name);
  for (const std::string& name : explore.workloads) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw_bad_input(fmt::format("--workload {}: there is no such workload", name),
                    known_names(name, known));
  }
  explore::Catalog catalog(world.workloads, settings_of_repository(world));
  for (const auto& [path, names] :
       {std::pair("precision", explore.precisions), std::pair("workload", explore.workloads)}) {
    if (!names.empty()) catalog.restrict_to(path, {names.begin(), names.end()});
  }
  for (const std::string& text : explore.set) restrict_by(catalog, text);
  return catalog;
}

}  // namespace

int fuzz_command(const Arguments& arguments, const CommandLine& command, world::WorldPool& pool) {
  const ExploreArguments& explore = arguments.explore;
  const RunArguments& run = arguments.run;
  const WorldChoice world = {.device = enum_of<DeviceKind>(run.world.device),
                             .workloads = run.workloads};
  const explore::Catalog catalog = catalog_for(explore, world);
  explore::FuzzSettings settings = {.count = explore.count,
                                    .minutes = explore.minutes,
                                    .seed = explore.seed,
                                    .max_fail = run.max_fail};
  if (!run.backends.empty()) settings.backends.clear();
  for (const std::string& backend : run.backends) {
    settings.backends.push_back(enum_of<Backend>(backend));
  }
  for (const Backend backend : settings.backends) require_can_run(backend, world.device);
  const auto run_round = [&](explore::Fuzz::Round round) {
    RunArguments of_round = run;
    of_round.out = round.folder;
    of_round.quiet = of_round.drawn = of_round.allow_partial = of_round.world.no_cache = true;
    of_round.time_budget_s = round.budget_s;
    std::vector<judge::CaseResult> results;
    run_cases(of_round, command, {.cases = std::move(round.cases), .skipped = {}}, pool,
              std::nullopt, &results);
    return results;
  };
  explore::Fuzz fuzz(settings, catalog, world, run_round, [&] { return pool.interrupted(); });
  if (!explore.corpus.empty()) fuzz.read_corpus(explore.corpus);
  const bool again = !run.out.empty() && fs::exists(fs::path(run.out) / "coverage.json");
  fuzz.run(results_folder(run.out, {}, again || run.force));
  std::cout << fuzz.text(explore.coverage);
  if (!fuzz.ran_any() && !pool.interrupted()) {
    throw_bad_input("the ranks refused all cases: nothing was judged",
                    "their sentences are the 'refusals' of coverage.json; loosen --set, --workload "
                    "or --precision");
  }
  return pool.interrupted() ? 130 : judge::exit_status(fuzz.unexpected());
}

}  // namespace shardproof::sim::cli
