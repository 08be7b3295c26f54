#include "sim/cli/selection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <random>
#include <set>

#include "base/count_of.h"
#include "base/digest.h"
#include "base/error.h"
#include "sim/case/idle_options.h"
#include "sim/case/names.h"
#include "sim/case/option.h"
#include "sim/case/reference.h"
#include "sim/cli/machine.h"
#include "sim/judge/verdict/schedules.h"
#include "sim/lint/case_reader.h"
#include "sim/report/earlier_run.h"
#include "sim/run/case_check.h"
#include "sim/uses/relations/relations.h"
#include "sim/world/nodes/node_network.h"

namespace shardproof::sim::cli {

namespace {

bool has(const std::vector<std::string>& list, const std::string& item) {
  return std::ranges::find(list, item) != list.end();
}

// The backends of --backend, all of which must run here; without it, those that can.
std::vector<Backend> wanted_backends(const RunArguments& arguments) {
  const auto device = enum_of<DeviceKind>(arguments.world.device);
  std::vector<Backend> backends;
  for (const std::string& name : arguments.backends) {
    const auto backend = enum_of<Backend>(name);
    require_can_run(backend, device);
    if (std::ranges::count(backends, backend) == 0) backends.push_back(backend);
  }
  if (backends.empty()) backends = runnable_backends(device);
  if (backends.empty()) {
    throw_bad_input(fmt::format("no world can run here on {}", device),
                    why_not(Backend::kEmulated, device));
  }
  return backends;
}

// A text as it is; numbers and others by value, so that 1 is 1.0.
bool is_value(const CaseOption& option, const CaseSpec& spec, const std::string& text) {
  if (option.path == "world.backend") return text == name_of(spec.world.backend);
  const std::optional<nlohmann::json> found = value_of_key(spec, option.path);
  if (!found) return false;
  if (found->is_string()) return *found == text;
  const auto value = nlohmann::json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  // The null of a number, run.max_grad_norm, is its 0.
  return *found ==
         (value.is_null() && option.nullable && found->is_number() ? nlohmann::json(0) : value);
}

// "precision=float64", "tensor_parallel_size=2", "parallel.tensor_parallel_size=2", "tp=2".
bool has_value(const CaseSpec& spec, const std::string& filter) {
  const size_t equals = filter.find('=');
  if (equals == filter.npos) return false;
  const std::string key = filter.substr(0, equals), value = filter.substr(equals + 1);
  const auto& options = case_options();
  return std::ranges::any_of(options, [&](const CaseOption& option) {
    const std::string last = option.path.substr(option.path.rfind('.') + 1);
    // The layout that a case is compared with has keys of the same names.
    const bool is_short = !option.path.starts_with("reference.");
    const bool is_key =
        key == option.path || (is_short && (key == last || key == option.short_name));
    return is_key && is_value(option, spec, value);
  });
}

bool passes_filters(const RunArguments& arguments, const CaseSpec& spec) {
  const std::string& only = arguments.only;
  if (!only.empty() && spec.name != only && spec.name != judge::name_without_schedule(only))
    return false;
  return std::ranges::all_of(arguments.filters, [&](const std::string& filter) {
    return has(spec.tags, filter) || has_value(spec, filter) ||
           spec.name.find(filter) != std::string::npos;
  });
}

// Cases tagged slow or manual run only with --all or with their tag, name or file.
bool is_requested(const RunArguments& arguments, const CaseSpec& spec) {
  const auto& paths = arguments.paths;
  const bool is_named = std::ranges::any_of(
      paths, [&](const std::string& path) { return lint::own_scenario(path) == spec.file; });
  if (arguments.all_tags || !arguments.only.empty() || is_named) return true;
  for (const char* tag : {"slow", "manual"}) {
    if (has(spec.tags, tag) && !has(arguments.filters, tag)) return false;
  }
  return true;
}

void require_known_name(const std::string& only, const std::vector<CaseSpec>& cases) {
  std::vector<std::string> names;
  for (const CaseSpec& spec : cases) {
    if (spec.name == only || spec.name == judge::name_without_schedule(only)) return;
    names.push_back(spec.name);
  }
  if (!only.empty()) unknown_case(only, names);
}

// The names, without schedules, and backends of the cases of --rerun-failed. Their files are the
// scenarios of a command that names none.
std::set<std::pair<std::string, Backend>> failed_cases(RunArguments& arguments) {
  std::set<std::pair<std::string, Backend>> failed;
  std::set<std::string> files;
  if (arguments.rerun_failed.empty()) return failed;
  int64_t schedules = 0;
  const report::UnexpectedCases earlier =
      report::unexpected_cases(arguments.rerun_failed, arguments.no_unresolved);
  for (const CaseSpec& spec : earlier.cases) {
    failed.emplace(judge::name_without_schedule(spec.name), spec.world.backend);
    files.insert(spec.file);
    schedules = std::max(schedules, judge::schedule_of_name(spec.name));
  }
  const auto not_run = static_cast<int64_t>(earlier.not_run);
  if (failed.empty() && not_run > 0) {
    throw_bad_input(fmt::format("no case of {} failed, and {} did not run", arguments.rerun_failed,
                                count_of(not_run, "case")),
                    "run them with --resume");
  }
  if (not_run > 0) {
    std::cerr << fmt::format("{} of {} did not run, and will not now (--resume runs the rest)\n",
                             count_of(not_run, "case"), arguments.rerun_failed);
  }
  if (failed.empty()) {
    throw_bad_input(fmt::format("every case of {} ended as expected", arguments.rerun_failed),
                    "nothing is left to run again");
  }
  if (arguments.paths.empty()) arguments.paths.assign(files.begin(), files.end());
  if (arguments.schedules != runs::kAllSchedules && schedules > arguments.schedules) {
    throw_bad_input(fmt::format("a case of {} failed under schedule {}, which this run has not",
                                arguments.rerun_failed, schedules),
                    fmt::format("add --schedules {}", schedules));
  }
  return failed;
}

// A case that failed and is there no more may fail under another name. Of files that the command
// names, some are left out on purpose, and not all.
void require_all_there(const std::set<std::pair<std::string, Backend>>& failed,
                       const RunArguments& arguments, bool all_files,
                       const std::vector<CaseSpec>& cases) {
  std::set<std::string> names, gone;
  for (const CaseSpec& spec : cases) names.insert(spec.name);
  for (const auto& [name, backend] : failed) {
    if (!names.contains(name)) gone.insert(name);
  }
  const bool all_gone =
      std::ranges::all_of(failed, [&](const auto& one) { return gone.contains(one.first); });
  if (gone.empty() || (!all_files && !all_gone)) return;
  throw_bad_input(
      fmt::format("{} that failed in {} {} there no more: {}",
                  count_of(static_cast<int64_t>(gone.size()), "case"), arguments.rerun_failed,
                  gone.size() == 1 ? "is" : "are", fmt::join(gone, ", ")),
      "run their scenarios without --rerun-failed, or name the files of the others");
}

// Each emulated case under all schedules; of --only, or of a resumed run, those that it names.
std::vector<CaseSpec> under_schedules(std::vector<CaseSpec> cases, const RunArguments& arguments) {
  const bool any_emulated = std::ranges::any_of(
      cases, [](const CaseSpec& spec) { return spec.world.backend == Backend::kEmulated; });
  if (arguments.schedules != 0 && !cases.empty() && !any_emulated) {
    throw_bad_input("--schedules: no selected case runs in the emulated world",
                    "select one, or leave --schedules out");
  }
  const auto is_left_out = [&](const CaseSpec& spec) {
    return !arguments.names.empty() && !arguments.names.contains({spec.name, spec.world.backend});
  };
  if (arguments.schedules == runs::kAllSchedules) {
    std::erase_if(cases, is_left_out);
    return cases;
  }
  const int64_t only = judge::schedule_of_name(arguments.only);
  const bool names_schedule = only > 0 && !cases.empty() && arguments.only != cases.front().name;
  if (names_schedule && arguments.schedules > 0 && only > arguments.schedules) {
    throw_bad_input(
        fmt::format("--only names schedule {}, and the run has {}", only, arguments.schedules),
        fmt::format("add --schedules {}", only));
  }
  const bool adds_it = names_schedule && arguments.schedules == 0;
  cases = judge::with_schedules(std::move(cases), adds_it ? only : arguments.schedules);
  std::erase_if(cases, [&](const CaseSpec& spec) {
    const bool is_other =
        only > 0 && spec.world.backend == Backend::kEmulated && spec.name != arguments.only;
    return is_other || is_left_out(spec);
  });
  return cases;
}

void shuffle(std::vector<CaseSpec>& cases, int64_t seed) {
  std::mt19937_64 generator(static_cast<uint64_t>(seed));
  for (size_t left = cases.size(); left > 1; --left) {
    std::swap(cases[left - 1], cases[generator() % left]);  // the same with every standard library
  }
}

// Why the started ranks cannot run the case; "" when they can.
std::string wrong_size(const RunArguments& arguments, const CaseSpec& spec) {
  if (!arguments.world_size) return "";
  const auto wrong = [&](int64_t size) { return size != *arguments.world_size; };
  const int64_t size = spec.parallel.world_size();
  if (wrong(size))
    return fmt::format("needs {}, {} were started", count_of(size, "rank"), *arguments.world_size);
  if (!spec.reference.is_set()) return "";
  const int64_t of_reference = reference_layout(spec.reference).world_size();
  if (!wrong(of_reference)) return "";
  return fmt::format("its reference needs {}, {} were started", count_of(of_reference, "rank"),
                     *arguments.world_size);
}

// Of the names and backends of the cases, and of what the command changes in all of them.
std::string digest_of_selection(const RunArguments& arguments, const std::vector<CaseSpec>& cases) {
  std::string text = fmt::format("{} {} {}", arguments.seed.value_or(-1), arguments.sample_rows,
                                 arguments.schedules);
  for (const CaseSpec& spec : cases) text += fmt::format("\n{} {}", spec.name, spec.world.backend);
  return fmt::format("{:016x}", digest_of(text.data(), text.size()));
}

std::vector<CaseSpec> deal(const RunArguments& arguments, const std::vector<CaseSpec>& cases) {
  std::vector<CaseSpec> mine;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (static_cast<int64_t>(i) % arguments.shard_count == arguments.shard - 1)
      mine.push_back(cases[i]);
  }
  return mine;
}

}  // namespace

void unknown_case(const std::string& only, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(only, names);
  if (relations::relation_of(only) != nullptr) {
    throw_bad_input(fmt::format("--only {}: a relation is a case of `run --relations` alone", only),
                    "give the command with --relations, or the name without its relation");
  }
  throw_bad_input(fmt::format("--only {}: no case has this name", only),
                  nearest.empty() ? "`shardproof list` shows all names"
                                  : fmt::format("did you mean {}?", nearest));
}

RunArguments as_they_ran(RunArguments arguments) {
  if (arguments.rerun_failed.empty()) return arguments;
  std::vector<std::string> words =
      report::unexpected_cases(arguments.rerun_failed, false).arguments;
  words.insert(words.begin(), "shardproof");
  const ParsedArguments parsed = parse_arguments(words);
  const std::string command = parsed.arguments ? parsed.arguments->command : "";
  if (command != "run" && command != "rank") return arguments;
  const RunArguments& then = parsed.arguments->run;
  const auto take = [&](const std::string& option, const std::string& value) {
    std::cerr << fmt::format("--rerun-failed: {}{}{} as in {}\n", option, value.empty() ? "" : " ",
                             value, arguments.rerun_failed);
    arguments.taken_over.push_back(option);
    if (!value.empty()) arguments.taken_over.push_back(value);
  };
  if (!arguments.seed && then.seed) {
    arguments.seed = then.seed;
    take("--seed", std::to_string(*then.seed));
  }
  const bool is_another = arguments.schedules != 0 || arguments.relations;
  if (!is_another && then.relations && arguments.sample_rows == 0) {
    arguments.relations = true;
    take("--relations", "");
  }
  if (!is_another && then.schedules != 0) {
    arguments.schedules = then.schedules;
    const bool all = then.schedules == runs::kAllSchedules;
    take("--schedules", all ? "all" : std::to_string(then.schedules));
  }
  if (!arguments.relations && arguments.sample_rows == 0 && then.sample_rows > 0) {
    arguments.sample_rows = then.sample_rows;
    take("--sample-rows", std::to_string(then.sample_rows));
  }
  if (!arguments.no_unresolved && then.no_unresolved) {
    arguments.no_unresolved = true;
    take("--no-unresolved", "");
  }
  return arguments;
}

Selection select_cases(const RunArguments& given) {
  RunArguments arguments = given;
  const auto failed = failed_cases(arguments);
  const auto has_failed = [&](const CaseSpec& spec) {
    const bool anywhere = !arguments.backends.empty();  // the command names the backends anew
    return std::ranges::any_of(failed, [&](const auto& one) {
      return one.first == spec.name && (anywhere || one.second == spec.world.backend);
    });
  };
  std::vector<CaseSpec> cases =
      lint::read_cases(lint::find_scenario_files(arguments.paths),
                       {.backends = wanted_backends(arguments),
                        .replaces_backend = !arguments.backends.empty(),
                        .device = enum_of<DeviceKind>(arguments.world.device),
                        .workloads = arguments.workloads});
  if (arguments.relations) cases = relations::with_relations(cases);
  require_known_name(arguments.only, cases);
  require_all_there(failed, arguments, given.paths.empty(), cases);
  Selection selection;
  std::erase_if(cases, [&](const CaseSpec& spec) {
    if (!passes_filters(arguments, spec)) return true;
    if (!arguments.names.empty()) return false;
    if (!arguments.rerun_failed.empty()) return !has_failed(spec);
    const bool is_slow = !is_requested(arguments, spec);
    selection.slow += is_slow;
    return is_slow;
  });
  const size_t of_all_shares = cases.size();
  selection.digest = digest_of_selection(arguments, cases);
  cases = deal(arguments, cases);
  if (cases.empty() && of_all_shares > 0) {
    selection.empty_share =
        fmt::format("share {} of {} has none of the {}", arguments.shard, arguments.shard_count,
                    count_of(static_cast<int64_t>(of_all_shares), "case"));
  }
  cases = under_schedules(std::move(cases), arguments);
  if (arguments.shuffle) shuffle(cases, *arguments.shuffle);

  const auto device = enum_of<DeviceKind>(arguments.world.device);
  for (CaseSpec& spec : cases) {
    if (arguments.seed) spec.seed = *arguments.seed;
    if (arguments.sample_rows > 0 && is_model_workload(spec.workload)) {
      spec.sample_rows = arguments.sample_rows;
    }
    if (spec.skip.empty() && spec.world.device != device) {  // of an earlier run
      spec.skip = why_not(spec.world.backend, spec.world.device);
    }
    if (spec.skip.empty()) spec.skip = wrong_size(arguments, spec);
    if (spec.skip.empty() && !arguments.world_size) spec.skip = world::why_no_nodes(spec);
    (spec.skip.empty() ? selection.cases : selection.skipped).push_back(std::move(spec));
  }
  std::cerr << run::unread_keys_notes(selection.cases);
  return selection;
}

CaseSpec select_one_case(const RunArguments& arguments) {
  Selection selection = select_cases(arguments);
  auto& cases = selection.cases;
  cases.insert(cases.end(), selection.skipped.begin(), selection.skipped.end());
  if (cases.empty()) throw_bad_input("no case was selected", "`shardproof list` shows all cases");
  if (cases.size() > 1) {
    std::cerr << fmt::format("{} cases were selected; this is {} (--only chooses)\n", cases.size(),
                             cases.front().name);
  }
  return cases.front();
}

}  // namespace shardproof::sim::cli
