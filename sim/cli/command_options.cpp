// The options of commands that have a file of their own: those of mutants, validate, fuzz and
// shrink.
#include "sim/cli/command_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "sim/case/names.h"
#include "sim/report/summary.h"

namespace shardproof::sim::cli {
namespace {

void add_world_of_explore(CLI::App& app, RunArguments& run, const char* backends) {
  app.add_option("--backend", run.backends, backends)
      ->delimiter(',')
      ->check(CLI::IsMember(known_backends()));
  app.add_option("--device", run.world.device, "cpu or cuda")
      ->check(CLI::IsMember(known_devices()));
  app.add_flag("--ignore-limits", run.world.ignore_limits,
               "Start cases that are predicted to need more than this machine has");
}

constexpr const char* kAll = "all";

struct HelpGroup {
  const char* heading;
  std::vector<std::string> commands;
};

const HelpGroup kGroups[] = {
    {"Run scenarios", {"run", "rank", "list", "lint", "describe", "calls"}},
    {"Look at results", {"report", "compare-runs"}},
    {"Judge other programs", {"judge", "check", "golden", "logprobs", "model", "score"}},
    {"Search for bugs", {"fuzz", "shrink", "mutants"}},
    {"Check machines", {"validate", "doctor"}},
};

struct Example {
  const char *command, *words;
};
constexpr Example kExamples[] = {
    {"run", "scenarios/smoke --backend emulated"},
    {"judge", "recorded/tp2 --golden recorded/one   (docs/recorded_runs.md)"},
    {"validate", "--ranks 4"},
};

}  // namespace

void add_schedules(CLI::App& app, RunArguments& run) {
  const auto take = [&run](const std::string& text) {
    run.schedules = text == kAll ? runs::kAllSchedules : std::stoll(text);
  };
  app.add_option_function<std::string>("--schedules", take,
                                       "Run emulated cases under N schedules, or all, and compare")
      ->check(CLI::IsMember({kAll}) | CLI::Range(int64_t{1}, int64_t{1'000'000}));
}

void add_explore_flags(CLI::App& app, RunArguments& run) {
  CLI::Option* shrink = app.add_flag(
      "--shrink", run.shrink, "Make one unexpected case of each kind small, as `shrink` does");
  app.add_flag(
         "--relations", run.relations,
         "Instead of the golden, compare each case with changed ones whose values follow from "
         "its own, such as reordered samples (docs/explore.md)")
      ->excludes(shrink)
      ->excludes(app.get_option("--schedules"))
      ->excludes(app.get_option("--sample-rows"))
      ->excludes(app.get_option("--dump"));
}

void add_fuzz_options(CLI::App& app, Arguments& arguments) {
  ExploreArguments& explore = arguments.explore;
  RunArguments& run = arguments.run;
  CLI::Option* count = app.add_option("--count", explore.count, "Cases to draw (default: 200)")
                           ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--minutes", explore.minutes, "Draw and run cases for so long")
      ->check(CLI::Range(0.01, 1e5))
      ->excludes(count);
  app.add_option("--seed", explore.seed, "Of the draws (default: 0)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 52));
  app.add_option("--precision", explore.precisions, "Only these precisions (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(all_names<Precision>()));
  app.add_option("--workload", explore.workloads, "Only these workloads (default: all)")
      ->delimiter(',');
  app.add_option("--set", explore.set,
                 "Only cases with one of these values of a key, as in "
                 "parallel.pipeline_parallel_size=2,4; may be given several times")
      ->type_name("KEY=VALUE,..")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->expected(1);
  app.add_flag("--coverage", explore.coverage,
               "Print how many values and pairs of values have run");
  app.add_option("--corpus", explore.corpus,
                 "Folder of cases that an earlier fuzz kept: their pairs have run already");
  app.add_option("--out", run.out, "Folder for results and corpus (default: runs/<time>)");
  app.add_flag("--force", run.force, "Use the folder of --out even if it holds other files");
  app.add_option("--jobs,-j", run.jobs, "Cases at the same time, as in `run`")
      ->check(CLI::Range(1, 1024));
  app.add_option("--maxfail", run.max_fail, "Stop after so many that are not as expected")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  add_world_of_explore(app, run, "Backends to run each case on (default: emulated)");
}

void add_shrink_options(CLI::App& app, Arguments& arguments) {
  RunArguments& run = arguments.run;
  app.add_option("scenario", run.paths, "Scenario file")->required()->expected(1);
  app.add_option("--only", run.only, "The failing case, by its exact name");
  app.add_option("--deadline", arguments.explore.deadline_s,
                 "Seconds after which no smaller case is tried (default: 60)")
      ->check(CLI::Range(1.0, 1e6));
  app.add_option("--out", run.out, "Scenario file to write (default: runs/shrunk/<case>.yaml)");
  app.add_flag("--force", run.force, "Replace a file of --out that shrink did not write, too");
  add_world_of_explore(app, run, "Backend of the case (default: emulated)");
}

void add_mutant_options(CLI::App& app, MutantArguments& mutants) {
  app.add_option("--filter", mutants.filter, "Only rows whose id or source holds this text");
  app.add_option("--jobs,-j", mutants.jobs, "Gates at the same time")->check(CLI::Range(1, 64));
  app.add_option("--sample", mutants.sample, "Only so many rows, drawn by --seed")
      ->check(CLI::Range(1, 100000));
  app.add_option("--seed", mutants.seed, "Of the sample")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 62));
  app.add_flag("--check,--check-patches", mutants.check,
               "Only whether every row can be planted; builds nothing");
  app.add_option_function<std::string>(
         "--changed", [&mutants](const std::string& base) { mutants.changed = base; },
         "Only rows whose function differs from that of a commit (default: where the branch "
         "left origin/main, else HEAD~1)")
      ->expected(0, 1)
      ->type_name("BASE");
}

// In place of run's.
constexpr const char* kValidateStatuses =
    "Exit status:\n"
    "  0: no findings\n"
    "  1: wrong values or digests\n"
    "  2: bad input\n"
    "  3: a rank died, hung or threw, with --slow a host or link is too slow, or a clock is off\n"
    "  5: a fault in shardproof itself\n"
    "  130: interrupted\n";

void add_validate_options(CLI::App& app, Arguments& arguments) {
  ValidateArguments& validate = arguments.validate;
  app.add_flag("--ignore-limits", arguments.run.world.ignore_limits,
               "Start ranks that are predicted to need more than this machine has");
  app.add_option("suite", validate.suite, "Suite file (docs/validate.md); default: all stages");
  app.add_option("--ranks", validate.ranks,
                 "Start so many ranks on this machine; without it a launcher has started them")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app.add_option("--minutes", validate.minutes, "Go on with further rounds for so long")
      ->check(CLI::Range(0.01, 1e6));
  app.add_option("--slow", validate.slow,
                 "A host or link slower than so many medians is a finding (default: none is)")
      ->check(CLI::Range(1.01, 1e6));
  app.add_option("--backend", validate.backend,
                 "gloo, nccl, or with --ranks emulated (default: gloo; nccl with --device cuda)")
      ->check(CLI::IsMember(known_backends()));
  app.add_option("--device", validate.device, "cpu or cuda")->check(CLI::IsMember(known_devices()));
  app.add_option("--out", arguments.run.out,
                 "Folder for validation.json and junit.xml (default: runs/<time>)");
  app.add_flag("--force", arguments.run.force,
               "Use the folder of --out even if it holds other files");
  app.add_flag("--no-cache", arguments.run.world.no_cache, "Compute every golden anew");
  app.footer(kValidateStatuses);
}

void add_judge_options(CLI::App& app, CheckArguments& check) {
  const char* const of_cases = "Options of case folders";
  const char* const of_runs = "Options of recorded runs";
  for (CLI::Option* option : app.get_options()) {  // those of add_case
    if (option != app.get_help_ptr()) option->group(of_cases);
  }
  app.add_option("result", check.result_file,
                 "Of a case folder: safetensors file, named as expected.safetensors");
  app.add_flag("--allow-partial", check.allow_partial,
               "Judge a file that lacks tensors by those that it holds")
      ->group(of_cases);
  app.add_option("--golden", check.golden,
                 "The run of one rank; of a case folder: answers as its expected.safetensors, "
                 "instead of computing them");
  app.add_flag("--no-unresolved", check.no_unresolved,
               "With --golden: exit with 1 when a tensor could not be judged");
  app.add_flag("--reference", check.reference,
               "Compare two layouts: the --golden run may have several ranks, too")
      ->group(of_runs);
  app.add_option("--out", check.out, "Folder for results.json, junit.xml and `report`")
      ->group(of_runs);
  app.add_flag("--force", check.force, "With --out: also into a folder that holds other files")
      ->group(of_runs);
}

namespace {

constexpr int64_t kMaxShards = 1'000'000;

bool takes_a_number(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.find("FLOAT") != type.npos || type.find("NUMBER") != type.npos;
}

bool is_nan(const std::string& text) {
  char* end = nullptr;
  return std::isnan(std::strtod(text.c_str(), &end)) && *end == '\0';
}

}  // namespace

std::string bad_value(const CLI::App& command, const std::vector<std::string>& words) {
  for (size_t i = 2; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.empty()) {
      return fmt::format("an argument of {} is empty; give it a value, or leave it out",
                         command.get_name());
    }
    const std::string name = word.substr(0, word.find('='));
    if (!name.starts_with('-') || name == "-") continue;
    const CLI::Option* option = command.get_option_no_throw(name);
    if (option == nullptr) {
      if (name.starts_with("--")) return "";  // the parser names the nearest option
      continue;
    }
    const bool joined = name.size() < word.size();
    if (!joined && (option->get_items_expected_min() == 0 || i + 1 == words.size())) continue;
    const std::string& value = joined ? word.substr(name.size() + 1) : words[++i];
    if (value.empty()) {
      return fmt::format("{} is empty; give it a value, or leave it out", name);
    }
    const bool is_option =
        value.starts_with("--") ||
        (value.starts_with('-') && command.get_option_no_throw(value) != nullptr);
    if (!joined && is_option) {
      return fmt::format(
          "{0} needs a value, and {1} is an option; write {0}={1} if it is the value", name, value);
    }
    if (takes_a_number(*option) && is_nan(value)) {
      return fmt::format("{} {} is not a number; give a number", name, value);
    }
  }
  return "";
}

CLI::Validator shard_text(RunArguments& run) {
  const auto check = [&run](std::string& text) -> std::string {
    int64_t index = 0, count = 0;
    char slash = 0, rest = 0;
    const int read = std::sscanf(text.c_str(), "%ld%c%ld%c", &index, &slash, &count, &rest);
    if (read != 3 || slash != '/' || index < 1 || count < index) {
      return fmt::format("'{}' is not a shard; write I/N with 1 <= I <= N, for example 2/4", text);
    }
    if (count > kMaxShards) return fmt::format("'{}': N is at most {}", text, kMaxShards);
    run.shard = index;
    run.shard_count = count;
    return "";
  };
  return CLI::Validator(check, "", "shard");
}

std::string group_of(const std::string& command, const CommandNames& here) {
  if (!is_in(here, command)) return "Only in the whole program (./shardproof build in a clone)";
  for (const HelpGroup& group : kGroups) {
    const auto& names = group.commands;
    if (std::find(names.begin(), names.end(), command) != names.end()) return group.heading;
  }
  return "Other";
}

std::string examples_and_statuses(const CommandNames& here) {
  std::string text = "Examples:\n";
  for (const auto& [command, words] : kExamples) {
    if (is_in(here, command)) text += fmt::format("  shardproof {} {}\n", command, words);
  }
  text += "\nExit status:\n";
  for (const int status : {0, 1, 2, 3, 4, 5, 130}) {
    text += "  " + report::exit_status_text(status) + "\n";
  }
  return text;
}

}  // namespace shardproof::sim::cli
