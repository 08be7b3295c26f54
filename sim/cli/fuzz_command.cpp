// fuzz: draws cases over every option, runs them in rounds, and keeps those that reached a new pair
// of values.
//
//   <out>/corpus/<seed>-<n>.yaml   the cases that are kept, and those that were not as expected
//   <out>/rounds/<k>               a run folder for each round
//   <out>/coverage.json            which values and pairs of values have run
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "base/count_of.h"
#include "base/elapsed.h"
#include "base/error.h"
#include "base/seed.h"
#include "base/text_file.h"
#include "sim/case/names.h"
#include "sim/case/scenario/schema.h"
#include "sim/cli/commands.h"
#include "sim/cli/machine.h"
#include "sim/cli/outputs.h"
#include "sim/lint/case_reader.h"
#include "sim/report/run_folder.h"
#include "sim/uses/explore/draw.h"
#include "sim/uses/explore/shrink.h"

namespace shardproof::sim::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Cases; after each round, what has run is known. The first is short, so that what every second
// case shows is reported within seconds, and each has twice as many as the one before.
constexpr int64_t kFirstRound = 50, kRound = 400;
// One of kPairs cases is around a pair of values that has not run, and one of kAtEdges of these is
// at an edge of the code instead. The others are of registered workloads and take little time each.
constexpr int64_t kPairs = 4, kAtEdges = 4;
constexpr int64_t kSampledPairs = 2000;  // of which the valid ones are counted
constexpr int64_t kSampleTries = 20;     // draws before a pair counts as invalid
constexpr size_t kShownUnexpected = 20;

// The settings of the repository's cases that match, for options whose values are texts and maps.
std::vector<explore::CaseSettings> settings_of_repository(const WorldChoice& world) {
  std::vector<explore::CaseSettings> all;
  const std::string folder = lint::find_in_repository("scenarios");
  if (folder.empty()) return all;
  for (const std::string& file : lint::find_scenario_files({folder})) {
    Scenario scenario = parse_scenario(file, world);
    for (size_t i = 0; i < scenario.cases.size(); ++i) {
      const CaseSpec& spec = scenario.cases[i];
      if (spec.expect.verdict != Verdict::kMatch || !spec.faults.empty() || !spec.skip.empty())
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

explore::Catalog catalog_for(const ExploreArguments& explore, const WorldChoice& world) {
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

class Fuzz {
 public:
  Fuzz(const Arguments& arguments, const CommandLine& command, world::WorldPool& pool)
      : explore_(arguments.explore),
        run_(arguments.run),
        command_(command),
        pool_(pool),
        world_{.device = enum_of<DeviceKind>(run_.world.device), .workloads = run_.workloads},
        catalog_(catalog_for(explore_, world_)),
        coverage_(catalog_),
        drawer_(catalog_, world_),
        random_(stream_seed(explore_.seed, "fuzz")) {
    if (run_.backends.empty()) run_.backends = {"emulated"};
    for (const std::string& backend : run_.backends) {
      require_can_run(enum_of<Backend>(backend), world_.device);
    }
  }

  int go() {
    if (!explore_.corpus.empty()) read_corpus(explore_.corpus);
    const bool again = !run_.out.empty() && fs::exists(fs::path(run_.out) / "coverage.json");
    folder_ = results_folder(run_.out, {}, again || run_.force);
    fs::create_directories(folder_ / "corpus");
    while (!is_over()) one_round();
    sample_pairs();
    write_text_file(folder_ / "coverage.json", coverage_json().dump(1) + "\n");
    std::cout << text();
    return status();
  }

 private:
  struct DrawnCase {
    explore::CaseSettings settings;
    fs::path file;
    bool kept = false;
  };

  // The pairs of the cases in a folder have run.
  void read_corpus(const std::string& folder) {
    for (const std::string& file : lint::find_scenario_files({folder})) {
      for (const explore::CaseSettings& settings : parse_scenario(file, world_).settings) {
        coverage_.add(catalog_.kinds_in(settings));
      }
    }
  }

  double seconds_left() const { return explore_.minutes * 60 - seconds_since(start_); }

  bool is_over() const {
    const bool failed =
        run_.max_fail > 0 && static_cast<int64_t>(unexpected_.size()) >= run_.max_fail;
    const bool spent = explore_.minutes > 0 ? seconds_left() <= 0 : drawn_ >= explore_.count;
    return failed || spent || pool_.interrupted();
  }

  void one_round() {
    const int64_t most = rounds_ < 3 ? kFirstRound << rounds_ : kRound;
    const int64_t left = explore_.minutes > 0 ? most : explore_.count - drawn_;
    explore::PairCoverage expected = coverage_;  // a draw counts as run until the round ends
    Selection selection;
    std::map<std::string, DrawnCase> drawn;
    for (int64_t i = 0; i < std::min(left, most); ++i) draw(expected, selection, drawn);
    RunArguments arguments = run_;
    arguments.out = (folder_ / "rounds" / std::to_string(++rounds_)).string();
    arguments.quiet = arguments.drawn = arguments.allow_partial = arguments.world.no_cache = true;
    if (explore_.minutes > 0) arguments.time_budget_s = std::max(1.0, seconds_left());
    std::vector<judge::CaseResult> results;
    run_cases(arguments, command_, std::move(selection), pool_, std::nullopt, &results);
    for (const judge::CaseResult& result : results) take(result, drawn.at(result.spec.name));
    for (const auto& [name, one] : drawn) {
      if (!one.kept) fs::remove(one.file);
    }
  }

  void draw(explore::PairCoverage& expected, Selection& selection,
            std::map<std::string, DrawnCase>& drawn) {
    const int64_t number = ++drawn_;
    std::optional<explore::CaseSettings> found;
    if (number % kPairs != 0) {
      found = drawer_.draw_registered(random_);
    } else if (number % (kPairs * kAtEdges) == 0) {
      found = drawer_.draw_at_edge(random_);
    }
    const explore::CaseSettings settings =
        found ? *found : drawer_.draw_missing(coverage_, expected, random_);
    expected.add(catalog_.kinds_in(settings));
    const std::string name = fmt::format("{}-{:06}", explore_.seed, number);
    const fs::path file = folder_ / "corpus" / (name + ".yaml");
    write_text_file(
        file, explore::scenario_text(settings, fmt::format("shardproof fuzz --seed {}, case {}",
                                                           explore_.seed, number)));
    for (const std::string& backend : run_.backends) {
      WorldChoice world = world_;
      world.backend = enum_of<Backend>(backend);
      explore::CheckedCase checked = explore::check_settings(settings, file.string(), world);
      SHARDPROOF_ASSERT(checked.spec.has_value(), "a drawn case is refused: " + checked.sentence);
      drawn[checked.spec->name] = {.settings = settings, .file = file};
      selection.cases.push_back(std::move(*checked.spec));
    }
  }

  void take(const judge::CaseResult& result, DrawnCase& drawn) {
    if (result.verdict == Verdict::kRefused) {
      ++refused_;
      refusals_.try_emplace(result.message.substr(0, result.message.find('\n')),
                            drawn.file.string());
      return;
    }
    ++run_count_;
    drawn.kept = coverage_.add(catalog_.kinds_in(drawn.settings)) > 0 || drawn.kept;
    if (result.as_expected) return;
    drawn.kept = true;
    unexpected_.push_back({{"case", result.spec.name},
                           {"finding", explore::failure_text(result)},
                           {"replay", result.replay}});
    judge::CaseResult& kept = status_of_.emplace_back();
    kept.verdict = result.verdict;
    kept.as_expected = false;
  }

  // Of pairs drawn among all: which are valid, and which of those have run.
  void sample_pairs() {
    for (int64_t i = 0; i < std::min(kSampledPairs, drawn_) && !pool_.interrupted(); ++i) {
      const explore::KindPair pair = coverage_.any_pair(random_);
      ++sampled_;
      if (coverage_.has_run(pair)) {
        ++sampled_run_;
        ++sampled_valid_;
      } else if (drawer_.draw(pair, random_, kSampleTries)) {
        ++sampled_valid_;
        if (lacking_.size() < 200) {
          lacking_.push_back(catalog_.describe(pair.first) + " and " +
                             catalog_.describe(pair.second));
        }
      }
    }
  }

  std::vector<std::string> missing_values() const {
    std::vector<std::string> missing;
    for (size_t kind = 0; kind < catalog_.kinds().size(); ++kind) {
      if (coverage_.cases_with(kind) == 0) missing.push_back(catalog_.describe(kind));
    }
    return missing;
  }

  json coverage_json() const {
    json values = json::object();
    for (size_t kind = 0; kind < catalog_.kinds().size(); ++kind) {
      const explore::ValueKind& one = catalog_.kinds()[kind];
      values[catalog_.options()[one.option].path][one.label] = coverage_.cases_with(kind);
    }
    const explore::DrawCounts& draws = drawer_.counts();
    return {{"format", "shardproof-coverage/1"},
            {"seed", explore_.seed},
            {"cases", {{"drawn", drawn_}, {"run", run_count_}, {"refused_by_ranks", refused_}}},
            {"draws",
             {{"checked", draws.drawn},
              {"refused", draws.refused},
              {"refused_by_key", draws.refused_by}}},
            {"refusals", refusals_},
            {"values", values},
            {"values_not_run", missing_values()},
            {"pairs",
             {{"run", coverage_.pairs_run()},
              {"given_up", coverage_.pairs_given_up()},
              {"sampled", sampled_},
              {"sampled_valid", sampled_valid_},
              {"sampled_run", sampled_run_},
              {"lacking", lacking_}}},
            {"unexpected", unexpected_}};
  }

  static double percent(int64_t part, int64_t whole) {
    return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  }

  // With --coverage; it is in coverage.json anyway.
  std::string coverage_text() const {
    const size_t missing = missing_values().size(), kinds = catalog_.kinds().size();
    const explore::DrawCounts& draws = drawer_.counts();
    return fmt::format(
        "{:.0f}% of {} drawn settings were refused before a run\n"
        "{} of {} kinds of values have run, and {} pairs of them\n"
        "{} of {} pairs drawn at random are valid, and {:.1f}% of the valid ones have run\n",
        percent(draws.refused, draws.drawn), draws.drawn, kinds - missing, kinds,
        coverage_.pairs_run(), sampled_valid_, sampled_, percent(sampled_run_, sampled_valid_));
  }

  std::string text() const {
    const auto failed = static_cast<int64_t>(unexpected_.size());
    std::string text = fmt::format("\n{} (seed {}): {} match, {} refused, {} failed\n",
                                   count_of(run_count_ + refused_, "random case"), explore_.seed,
                                   run_count_ - failed, refused_, failed);
    if (explore_.coverage) text += coverage_text();
    for (size_t i = 0; i < std::min(unexpected_.size(), kShownUnexpected); ++i) {
      text += fmt::format("{}: {}\n  replay: {}\n", unexpected_[i]["case"].get<std::string>(),
                          unexpected_[i]["finding"].get<std::string>(),
                          unexpected_[i]["replay"].get<std::string>());
    }
    return text + fmt::format("all of it: {}\n", (folder_ / "coverage.json").string());
  }

  int status() const {
    if (pool_.interrupted()) return 130;
    return judge::exit_status(status_of_);
  }

  const ExploreArguments& explore_;
  RunArguments run_;
  const CommandLine& command_;
  world::WorldPool& pool_;
  WorldChoice world_;
  explore::Catalog catalog_;
  explore::PairCoverage coverage_;
  explore::Drawer drawer_;
  std::mt19937_64 random_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  fs::path folder_;
  int64_t drawn_ = 0, rounds_ = 0, run_count_ = 0, refused_ = 0;
  int64_t sampled_ = 0, sampled_valid_ = 0, sampled_run_ = 0;
  std::map<std::string, std::string> refusals_;  // a sentence, and the first case with it
  std::vector<std::string> lacking_;
  std::vector<json> unexpected_;
  std::vector<judge::CaseResult> status_of_;  // of unexpected cases: what exit_status reads
};

}  // namespace

int fuzz_command(const Arguments& arguments, const CommandLine& command, world::WorldPool& pool) {
  return Fuzz(arguments, command, pool).go();
}

}  // namespace shardproof::sim::cli
