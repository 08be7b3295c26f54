#include "sim/cli/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <regex>

#include "base/error.h"
#include "base/failure.h"
#include "base/utf8.h"
#include "sim/case/names.h"
#include "sim/case/option.h"
#include "sim/case/scenario/schema.h"
#include "sim/cli/command_options.h"
#include "sim/cli/outputs.h"
#include "sim/cli/version.h"

namespace shardproof::sim::cli {

namespace {

constexpr size_t kMaxComplaint = 800;  // bytes of a message, which may quote an argument

// Validates names as CLI::IsMember does; its message has the nearest known name.
CLI::Validator one_of(const std::vector<std::string>& known) {
  const auto check = [known](std::string& word) -> std::string {
    if (std::find(known.begin(), known.end(), word) != known.end()) return "";
    return fmt::format("'{}' is unknown; {}", word, known_names(word, known));
  };
  return CLI::Validator(check, "", "one_of");
}

void add_ignore_limits(CLI::App& app, WorldArguments& world) {
  app.add_flag("--ignore-limits", world.ignore_limits,
               "Start cases that need more memory, threads, files or disk than there is");
}

void add_world(CLI::App& app, WorldArguments& world) {
  app.add_option("--device", world.device, "cpu or cuda")->check(one_of(known_devices()));
  app.add_flag("--fresh", world.fresh,
               "Make a new world for every case instead of reusing warm ones");
  app.add_flag("--no-cache", world.no_cache, "Compute every golden anew");
  add_ignore_limits(app, world);
}

void add_selection(CLI::App& app, RunArguments& run) {
  app.add_option("scenarios", run.paths, "Scenario files and folders (default: scenarios/)");
  app.add_option("--backend", run.backends,
                 "emulated, gloo or nccl (default: all that can run here)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(one_of(known_backends()));
  app.add_option(
         "--filter", run.filters,
         "Only cases whose name holds this, or that have this tag; if repeated, all of them")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--only", run.only, "Only the case of exactly this name");
  app.add_option("--shard", "Only the I-th of N equal shares of the cases, I from 1")
      ->type_name("I/N")
      ->check(shard_text(run));
  app.add_option("--shuffle", run.shuffle, "Run in an order drawn from this seed")
      ->check(CLI::Range(-(int64_t{1} << 62), int64_t{1} << 62));
  app.add_option("--seed", run.seed, "Replaces the seed of every scenario")
      ->check(CLI::Range(int64_t{0}, static_cast<int64_t>(kMaxSeed)));
  app.add_option("--rerun-failed", run.rerun_failed, "Only the unexpected cases of this run");
  app.add_flag("--all", run.all_tags, "Also the cases tagged slow or manual");
}

void add_format(CLI::App& app, RunArguments& run, const std::string& lines) {
  app.add_option_function<std::string>(
         "--format", [&run](const std::string& name) { run.json_lines = name == "jsonl"; },
         "What standard output gets: text, or jsonl, " + lines)
      ->check(one_of({"text", "jsonl"}));
}

void add_run(CLI::App& app, RunArguments& run) {
  add_selection(app, run);
  add_world(app, run.world);
  app.add_option("--jobs,-j", run.jobs,
                 "Cases at the same time (default: the cores, at least 2; over Gloo one)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--sample-rows", run.sample_rows, "Judge only so many rows of each tensor")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}));
  app.add_option("--time-budget", run.time_budget_s, "Start no case after so many seconds")
      ->check(CLI::Range(0.0, kMaxSeconds));
  app.add_option("--out", run.out, "Folder for the results (default: runs/<time>)");
  app.add_flag("--force", run.force, "Use the folder of --out even if it holds other files");
  app.add_flag("--quiet,-q", run.quiet, "No line for expected results");
  add_schedules(app, run);
  add_format(app, run, "a line of JSON for each case");
  app.add_option("--keep", run.keep,
                 "Rows of tensors, timelines and logs of which cases: all, or those that did not "
                 "end as expected (default: all of at most 50 cases)")
      ->check(CLI::IsMember({"all", "unexpected"}));
  app.add_option("--durations", run.durations, "List this many of the slowest cases at the end")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_flag("--no-skips", run.no_skips, "A skipped case makes the exit status 2");
  app.add_flag("--no-unresolved", run.no_unresolved, "An unresolved tensor gives exit status 1");
  app.add_option("--maxfail", run.max_fail, "Start no case after so many that are not as expected")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_flag_callback(
      "--fail-fast", [&run] { run.max_fail = 1; }, "The same as --maxfail 1");
  app.add_flag("--allow-partial", run.allow_partial,
               "Selected cases that were not run do not make the exit status 2");
}

// "How dp holds parameters (replicate, fsdp, hybrid; default replicate)"
std::string flag_doc(const CaseOption& option) {
  std::string names = fmt::format("{}", fmt::join(option.choices, ", "));
  if (option.default_value.is_string() && option.flag.replay == Flag::Replay::kWhenSet) {
    names += fmt::format("; default {}", option.default_value.get<std::string>());
  }
  if (!names.empty()) return fmt::format("{} ({})", option.doc, names);
  return option.default_value == true ? "Turns this off: " + option.doc : option.doc;
}

// Adds the flag of one row of the option table. A switch inverts the default.
void add_flag(CLI::App& app, const CaseOption& option, std::string& text) {
  const std::string names = option.flag.names;
  if (option.type == KeyType::kBool) {
    const char* switched = option.default_value == true ? "false" : "true";
    app.add_flag_callback(
        names, [&text, switched] { text = switched; }, flag_doc(option));
    return;
  }
  const auto check = [&option](std::string& given) -> std::string {
    try {
      Schema::checked_flag(option, given);
      return "";
    } catch (const Error& error) {  // CLI11 adds the flag's name too
      return std::string(error.what()).substr(option.flag_name().size() + 1);
    }
  };
  const bool alone = !option.of_bool.empty();  // the flag may stand without a value
  CLI::Option* flag =
      alone ? app.add_flag(names + "{" + option.of_bool.back() + "}", text, flag_doc(option))
            : app.add_option(names, text, flag_doc(option));
  flag->check(CLI::Validator(check, "", "option"));
  if (option.type == KeyType::kInteger || option.type == KeyType::kNumber) {
    flag->type_name(fmt::format("NUMBER in [{} - {}]", option.low, option.high));
  }
}

void add_flags(CLI::App& app, CheckArguments& check, Flag::Of of) {
  for (const CaseOption& option : case_options()) {
    if (option.flag_name().empty() || option.flag.of != of) continue;
    add_flag(app, option, check.flags[option.flag_name()]);
  }
}

void add_case(CLI::App& app, CheckArguments& check, const std::string& what) {
  app.add_option("case", check.case_path, what)->required();
  add_flags(app, check, Flag::Of::kEveryCommand);
  app.add_flag("--no-cache", check.world.no_cache, "Compute the golden anew");
  add_ignore_limits(app, check.world);
}

void add_check(CLI::App& app, CheckArguments& check) {
  add_case(app, check, "Case folder: config.json, model.safetensors, batch.safetensors, case.json");
  const std::string mesh =
      fmt::format("dp=2,tp=2; axes {}; of experts ep, etp", fmt::join(axis_names(), ", "));
  app.add_option("--mesh", check.mesh, "The mesh, for example " + mesh);
  app.add_option("--ulysses", check.ulysses, "Sets the ulysses axis of --mesh")
      ->check(CLI::Range(1, 65536));
  app.add_option("--world-size", check.world_size, "Ranks that --mesh must come to")
      ->check(CLI::Range(1, 65536));
  add_flags(app, check, Flag::Of::kCheck);
  app.add_flag("--packed", check.packed, "Pack the sequences into one row");
  app.add_option("--custom-plan", check.custom_plan, "JSON file with {slot name pattern: style}");
  app.add_option("--dynamic-batching", check.dynamic_tokens,
                 "Microbatches of like length, rows times length at most so many tokens")
      ->check(CLI::Range(1, 1 << 30));
  app.add_flag("--fresh", check.world.fresh, "Make a new world");
  app.add_option("--dump", check.dump, "Write the sharded run's own full tensors here");
  app.add_option("--save", check.save, "Write the trained model here, as a Hugging Face folder");
  app.add_option("--out", check.out, "Folder for the results (default: none)");
  app.add_flag("--force", check.force, "Write --dump, --save and --out even where other files are");
}

// One subcommand with its options.
struct Command {
  const char* name;
  const char* what;
  void (*add)(CLI::App&, Arguments&);
};

const Command kCommands[] = {
    {"run", "Run scenarios and judge every number against one device",
     [](CLI::App& app, Arguments& a) {
       add_run(app, a.run);
       app.add_option("--dump", a.run.dump, "Of one case: write its own full tensors here");
       add_explore_flags(app, a.run);
       CLI::Option* resume = app.add_option("--resume", a.run.resume,
                                            "Run what the run of this folder did not finish");
       for (const char* other :
            {"scenarios", "--backend", "--filter",      "--only",         "--shard",
             "--shuffle", "--seed",    "--sample-rows", "--rerun-failed", "--all",
             "--device",  "--fresh",   "--no-cache",    "--out",          "--force",
             "--dump",    "--shrink",  "--schedules",   "--relations",    "--ignore-limits"}) {
         resume->excludes(app.get_option(other));
       }
     }},
    {"list", "The cases that run would run",
     [](CLI::App& app, Arguments& a) {
       add_selection(app, a.run);
       app.add_flag("--keys", a.run.keys, "The keys of a scenario file, with types and defaults");
     }},
    {"lint", "Check scenario files, without running them: their errors with line and column",
     [](CLI::App& app, Arguments& a) {
       app.add_option("scenarios", a.run.paths,
                      "Scenario files, and folders of them (default: scenarios/)");
     }},
    {"describe", "What a scenario would run: mesh, layouts, collectives, memory",
     [](CLI::App& app, Arguments& a) { add_selection(app, a.run); }},
    {"calls", "Every collective call of each rank of one case: label, op, axis, shape, bytes",
     [](CLI::App& app, Arguments& a) {
       app.add_option("scenario", a.run.paths, "Scenario file")->required()->expected(1);
       app.add_option("--only", a.run.only, "The case of exactly this name");
       app.add_option("--label", a.run.label,
                      "Only calls whose label has this text, as in a fault (* is a wildcard)");
       add_format(app, a.run, "a line of JSON for each call, then for each axis and op");
     }},
    {"fuzz", "Draw cases over every option, run them, and report which pairs of values have run",
     [](CLI::App& app, Arguments& a) { add_fuzz_options(app, a); }},
    {"shrink", "The smallest case that fails in the same way as a failing one", add_shrink_options},
    {"validate", "Check the hosts and links of a job: values and times", add_validate_options},
    {"check", "Run a case folder sharded and judge it",
     [](CLI::App& app, Arguments& a) { add_check(app, a.check); }},
    {"judge", "Judge a run that another framework recorded, or a result file",
     [](CLI::App& app, Arguments& a) {
       add_case(app, a.check, "Recorded run (docs/recorded_runs.md), or case folder");
       add_judge_options(app, a.check);
     }},
    {"golden", "The single-device result alone",
     [](CLI::App& app, Arguments& a) {
       add_case(app, a.check, "Case folder or scenario file");
       app.add_option("--only", a.check.only, "Of a scenario: the case of exactly this name");
       app.add_option("--dump", a.check.dump, "Write it here, named as expected.safetensors");
       app.add_flag("--force", a.check.force, "Replace a file that --dump did not write, too");
     }},
    {"rank", "One rank, under torchrun, srun or mpirun",
     [](CLI::App& app, Arguments& a) { add_run(app, a.run); }},
    {"report", "HTML with pictures from run folders",
     [](CLI::App& app, Arguments& a) {
       app.add_option("run", a.report.folders,
                      "Run folder (default: the latest under runs/); several that share no case, "
                      "such as those of --shard, make one page");
       app.add_option("--out", a.report.out,
                      "The page (default: report.html in the run's folder, of several runs here)");
       app.add_flag("--all", a.report.everything, "Pictures of every case, however many");
     }},
    {"compare-runs", "The first tensor whose bits differ between two runs",
     [](CLI::App& app, Arguments& a) {
       app.add_option("a", a.folder, "Run folder, or its results.json")->required();
       app.add_option("b", a.other_folder, "The one to compare it with")->required();
     }},
    {"logprobs", "The cause of the difference of two files of per-token logprobs",
     [](CLI::App& app, Arguments& a) {
       app.add_option("a", a.logprobs.a, "File (docs/logprobs.md), or folder of them")->required();
       app.add_option("b", a.logprobs.b, "The one to compare it with")->required();
       app.add_option("--json", a.logprobs.json, "Write the findings here; - is standard output");
       app.add_flag("--force", a.logprobs.force, "Replace a file that holds no findings, too");
     }},
    {"mutants", "Plant known bugs, one by one: which are caught, named, explained",
     [](CLI::App& app, Arguments& a) { add_mutant_options(app, a.mutants); }},
    {"model", "Whether a model of transformers is right on several ranks",
     [](CLI::App&, Arguments&) {}},
    {"score", "Which faults a PyTorch program's tests notice", [](CLI::App&, Arguments&) {}},
    {"schema", "The JSON Schema of scenario files, for editors",
     [](CLI::App& app, Arguments& a) {
       app.add_flag("--workloads", a.run.known,
                    "Instead, the workloads that they may name, with all about their options");
     }},
    {"completion", "For bash: eval \"$(shardproof completion)\"", [](CLI::App&, Arguments&) {}},
    {"doctor", "What is installed, which worlds can run, why not", [](CLI::App&, Arguments&) {}},
    {"version", "Versions of shardproof and LibTorch", [](CLI::App&, Arguments&) {}},
};

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  return names;
}

// The long options of a command, to suggest the nearest one.
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string with_nearest(const std::string& message, const CLI::App& app,
                         const std::vector<std::string>& words) {
  if (words.size() >= 2 && !words[1].starts_with('-') && app.get_subcommands().empty()) {
    return fmt::format("unknown command '{}'; {}", words[1],
                       known_names(words[1], command_names()));
  }
  if (app.get_subcommands().empty()) return message;
  const CLI::App& command = *app.get_subcommands().front();
  const std::vector<std::string> known = option_names(command);
  for (size_t i = 2; i < words.size(); ++i) {
    const std::string given = words[i].substr(0, words[i].find('='));
    if (!given.starts_with("--")) continue;
    if (std::find(known.begin(), known.end(), given) != known.end()) continue;
    const std::string nearest = nearest_name(given, known);
    return fmt::format("{} has no option {}{}", command.get_name(), given,
                       nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
  }
  static const std::regex no_number(R"(Value ([^0-9+.-].*) not in range )");
  return std::regex_replace(message, no_number, "'$1' is not a number in the range ");
}

constexpr const char* kPurpose =
    "shardproof runs sharded LLM training on N ranks and proves it against one device";

void add_commands(CLI::App& app, Arguments& arguments, const CommandNames& here = {}) {
  app.require_subcommand(1);
  app.set_version_flag("--version", version_text());
  std::vector<Command> commands(std::begin(kCommands), std::end(kCommands));
  std::ranges::stable_partition(commands, [&](auto& one) { return is_in(here, one.name); });
  for (const Command& command : commands) {
    CLI::App* sub = app.add_subcommand(command.name, command.what);
    sub->group(group_of(command.name, here))->footer("Exit status: see shardproof --help");
    command.add(*sub, arguments);
    sub->callback([&arguments, name = command.name] { arguments.command = name; });
  }
  app.footer(examples_and_statuses(here));  // now that no command inherits it
}

}  // namespace

ParsedArguments parse_arguments(std::vector<std::string> words, const CommandNames& here) {
  ParsedArguments parsed;
  Arguments arguments;
  CLI::App app(kPurpose, "shardproof");
  add_commands(app, arguments, here);
  const auto refuse = [&parsed](const std::string& message) {
    parsed.status = 2;
    parsed.text =
        fmt::format("shardproof: {}; see shardproof --help\n", printable(message, kMaxComplaint));
  };
  for (const CLI::App* command : app.get_subcommands({})) {
    if (words.size() < 2 || command->get_name() != words[1]) continue;
    const std::string bad = bad_value(*command, words);
    if (!bad.empty()) refuse(bad);
  }
  if (parsed.status != 0) return parsed;
  try {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    app.parse(static_cast<int>(argv.size()), argv.data());
    parsed.arguments = arguments;
  } catch (const CLI::Success& success) {
    std::ostringstream out, err;
    app.exit(success, out, err);
    parsed.text = out.str();
  } catch (const CLI::ParseError& error) {
    refuse(with_nearest(error.what(), app, words));
  }
  return parsed;
}

int run_command_line(int argc, char** argv, const std::function<int(Arguments&)>& command,
                     const CommandNames& here) {
  prepare_standard_files();
  prepare_interrupts();
  return status_of_output(run_or_say_why([&] {
    ParsedArguments parsed = parse_arguments({argv, argv + argc}, here);
    (parsed.status == 0 ? std::cout : std::cerr) << parsed.text;
    return parsed.arguments ? command(*parsed.arguments) : parsed.status;
  }));
}

std::string bash_completion() {
  Arguments arguments;
  CLI::App app(kPurpose, "shardproof");
  add_commands(app, arguments);
  std::string cases;
  for (const Command& command : kCommands) {
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command.name,
                         fmt::join(option_names(*app.get_subcommand(command.name)), " "));
  }
  return fmt::format(R"(_shardproof() {{
  local words=""
  case "${{COMP_WORDS[1]}}" in
{}  esac
  if (( COMP_CWORD == 1 )); then words="{}"; fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$2"; (( COMP_CWORD == 1 )) || compgen -f -- "$2")
}}
complete -o filenames -F _shardproof shardproof ./shardproof
)",
                     cases, fmt::join(command_names(), " "));
}

}  // namespace shardproof::sim::cli
