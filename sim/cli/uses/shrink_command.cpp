// shrink: the smallest case that fails in the same way as a failing one, as a scenario file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>

#include "base/count_of.h"
#include "base/elapsed.h"
#include "base/error.h"
#include "base/text_file.h"
#include "base/utf8.h"
#include "sim/case/scenario/schema.h"
#include "sim/cli/machine.h"
#include "sim/cli/outputs.h"
#include "sim/cli/selection.h"
#include "sim/cli/uses/uses_commands.h"
#include "sim/judge/verdict/replay.h"
#include "sim/judge/verdict/schedules.h"
#include "sim/lint/case_reader.h"
#include "sim/run/case_runner.h"
#include "sim/uses/explore/shrink.h"
#include "sim/uses/explore/smaller_cases.h"

namespace shardproof::sim::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFolders[] = {"model.folder", "data.case"};
constexpr size_t kShownLine = 400;  // bytes of a finding in the head of the file
constexpr const char* kShrunkFrom = "# Shrunk from ";

// The case of this name; of a scenario of one case, that one.
explore::CaseSettings settings_of_case(const Scenario& scenario, const std::string& name) {
  std::vector<std::string> names;
  const std::string only = judge::name_without_schedule(name);
  for (size_t i = 0; i < scenario.cases.size(); ++i) {
    names.push_back(scenario.cases[i].name);
    if (names.back() != only && names.back() != name) continue;
    explore::CaseSettings settings = scenario.settings[i];
    if (names.back() == only && name != only)
      settings["world.schedule"] = judge::schedule_of_name(name);
    return settings;
  }
  if (only.empty() && names.size() == 1) return scenario.settings.front();
  if (only.empty()) {
    throw_bad_input(fmt::format("{} has {} cases", scenario.file, names.size()),
                    "name the failing one with --only");
  }
  unknown_case(name, names);
}

bool is_shrunk(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string line;
  while (std::getline(stream, line) && line.starts_with("#")) {
    if (line.starts_with(kShrunkFrom)) return true;
  }
  return false;
}

constexpr OwnFile kOwnScenario = {"a scenario that shrink wrote", is_shrunk};

class Shrink {
 public:
  Shrink(const Arguments& arguments, world::WorldPool& pool)
      : run_(arguments.run),
        deadline_s_(arguments.explore.deadline_s),
        pool_(pool),
        limits_(limits_for(run_.world)),
        goldens_(pool, false, limits_),
        runner_(pool, goldens_, false, limits_),
        world_{.device = enum_of<DeviceKind>(run_.world.device), .workloads = run_.workloads} {
    if (!run_.backends.empty()) world_.backend = enum_of<Backend>(run_.backends.front());
    require_can_run(world_.backend, world_.device);
  }

  int go() {
    const std::string path = lint::own_scenario(run_.paths.front());
    file_ = fs::absolute(path).string();
    const Scenario scenario = parse_scenario(path, world_);
    explore::CaseSettings settings = settings_of_case(scenario, run_.only);
    choose_place(scenario);
    for (const char* key : {"name", "tags", "expect.verdict", "expect.kind", "expect.tensor",
                            "expect.detector", "expect.message", "expect.collectives"}) {
      settings.erase(key);
    }
    if (run_.seed) settings["seed"] = *run_.seed;
    if (run_.sample_rows > 0) settings["sample_rows"] = run_.sample_rows;
    explore::TriedCases tried(
        runner_, file_, world_, [this] { return in_time(); },
        [this] { return pool_.interrupted(); });
    const judge::CaseResult before = tried.run(settings);
    const std::string signature = explore::failure_signature(before);
    if (signature.empty()) {
      std::cerr
          << "shardproof: run once and without its expect block the case matches, so there is "
             "nothing to shrink; a race, or expect.collectives, is not shrunk\n";
      return 2;
    }
    if (before.verdict == Verdict::kBadInput) {
      std::cerr << "shardproof: the case is bad input, which is not shrunk: "
                << printable(first_line(explore::failure_text(before)), kShownLine) << "\n";
      return 2;
    }
    std::cout << "the case fails: "
              << printable(first_line(explore::failure_text(before)), kShownLine) << std::endl;
    const explore::Shrunk shrunk = explore::shrink_case(
        settings, signature, [&](const auto& cases) { return tried.signatures_of(cases); },
        [this] { return in_time(); },
        options_of(world_.workloads, explore::setting_of(settings, "workload")));
    write(tried, settings, shrunk);
    return pool_.interrupted() ? 130 : 0;
  }

 private:
  bool in_time() const { return seconds_since(start_) < deadline_s_ && !pool_.interrupted(); }

  // Before anything runs.
  void choose_place(const Scenario& scenario) {
    std::string place = run_.out;
    if (place.empty()) {
      std::string name = run_.only.empty() ? fs::path(file_).stem().string() : run_.only;
      for (char& letter : name) {
        if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
      }
      place = (fs::path("runs") / "shrunk" / (name + ".yaml")).string();
    }
    std::vector<fs::path> inputs;
    for (const CaseSpec& spec : scenario.cases) {
      for (fs::path& input : inputs_of(spec)) inputs.push_back(std::move(input));
    }
    std::error_code reported_by_output_file;
    fs::create_directories(fs::absolute(place).parent_path(), reported_by_output_file);
    out_ = output_file("--out", place, inputs, run_.force, kOwnScenario);
  }

  // What happened instead, with the numbers that a signature leaves out.
  static std::string why_kept(const explore::TriedCases& tried, const explore::KeptSetting& kept) {
    if (kept.signature.empty()) return "match";
    const auto* const found = tried.ending_of(kept.edited);
    if (found == nullptr || found->text.empty()) return kept.signature;
    const bool zeros = explore::without_cause(kept.signature).ends_with(explore::kOfZeros);
    return first_line(found->text) + (zeros ? ", with all gradients 0" : "");
  }

  void write(const explore::TriedCases& tried, const explore::CaseSettings& before,
             const explore::Shrunk& shrunk) {
    const explore::TriedCases::Ending& found = *tried.ending_of(shrunk.settings);
    explore::CaseSettings settings = shrunk.settings;
    for (const char* key : kFolders) {
      if (!settings.contains(key)) continue;
      const fs::path folder = fs::path(file_).parent_path() / settings[key].get<std::string>();
      settings[key] = fs::relative(folder, out_.parent_path()).string();
    }
    // A case without faults is to match once it is corrected.
    if (settings.contains("faults") && found.verdict != Verdict::kInternal) {
      settings["expect.verdict"] = name_of(found.verdict);
      const auto& kinds = case_schema().find("expect.kind")->choices;
      const std::string kind = name_of(found.kind);
      if (std::ranges::count(kinds, kind) > 0) settings["expect.kind"] = kind;
    }
    const std::string head =
        fmt::format("{}\nShrunk from {}{}.", printable(first_line(found.text), kShownLine),
                    run_.paths.front(), run_.only.empty() ? "" : ", case " + run_.only);
    const std::string text = explore::scenario_text(settings, head);
    write_text_file(out_, text);
    std::cout << fmt::format(
        "shrunk from {} to {} in {:.1f} s: {} smaller cases were tried in {}\n{}",
        tried.size_text(before), tried.size_text(shrunk.settings), seconds_since(start_),
        shrunk.cases_run, count_of(shrunk.rounds, "round"), text);
    if (!shrunk.in_time) {
      std::cout << fmt::format("the deadline of {} s ended the search; --deadline gives it more\n",
                               deadline_s_);
    }
    if (!shrunk.kept.empty()) std::cout << "not smaller:\n";
    for (const explore::KeptSetting& kept : shrunk.kept) {
      std::cout << "  " << printable(kept.what + ": " + why_kept(tried, kept), kShownLine / 2)
                << '\n';
    }
    std::cout << "written to " << out_.string() << '\n';
  }

  const RunArguments& run_;
  double deadline_s_;
  world::WorldPool& pool_;
  std::optional<run::MachineLimits> limits_;
  run::GoldenStore goldens_;
  run::CaseRunner runner_;
  WorldChoice world_;
  std::string file_;
  fs::path out_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Standard output is for lines of JSON meanwhile.
class LinesElsewhere {
 public:
  explicit LinesElsewhere(bool is_so) : before_(std::cout.rdbuf()) {
    if (is_so) std::cout.rdbuf(std::cerr.rdbuf());
  }
  ~LinesElsewhere() { std::cout.rdbuf(before_); }
  LinesElsewhere(const LinesElsewhere&) = delete;
  LinesElsewhere& operator=(const LinesElsewhere&) = delete;

 private:
  std::streambuf* before_;
};

}  // namespace

int shrink_command(const Arguments& arguments, world::WorldPool& pool) {
  return Shrink(arguments, pool).go();
}

void shrink_unexpected(const std::vector<judge::CaseResult>& results, const RunArguments& run,
                       world::WorldPool& pool) {
  const LinesElsewhere text(run.json_lines);
  std::set<std::string> seen;  // one case of each way to fail
  for (const judge::CaseResult& result : results) {
    const bool is_new = !result.as_expected && result.verdict != Verdict::kMatch &&
                        seen.insert(explore::failure_signature(result)).second;
    const bool is_scenario = fs::path(result.spec.file).extension() != ".json";
    if (!is_new || !is_scenario || pool.interrupted()) continue;
    if (result.kind == ResultKind::kRace) {
      std::cout << fmt::format("\nnot shrunk, because a race needs two schedules: {}\n",
                               result.spec.name);
      continue;
    }
    Arguments arguments;
    arguments.run = run;
    arguments.run.paths = {result.spec.file};
    arguments.run.only = result.spec.name;
    arguments.run.backends = {name_of(result.spec.world.backend)};
    arguments.run.out.clear();
    std::cout << "\nshrinking " << result.spec.name << std::endl;
    try {
      shrink_command(arguments, pool);
    } catch (const Error& error) {
      std::cout << fmt::format(
          "not shrunk: {}; `shardproof shrink {} --only {}` may help with "
          "other options\n",
          error.fact(), judge::shell_word(result.spec.file), judge::shell_word(result.spec.name));
    }
  }
}

}  // namespace shardproof::sim::cli
