#include "sim/cli/selection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "base/utf8.h"
#include "sim/case/option.h"
#include "sim/case/scenario/case_folder.h"
#include "sim/case/scenario/read_text.h"
#include "sim/case/scenario/scenario.h"
#include "sim/cli/machine.h"
#include "sim/report/earlier_run.h"
#include "sim/run/case_check.h"

namespace shardproof::sim {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void bad_selection(const std::string& what, const std::string& fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = what, .fix = fix});
}

bool has(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

bool is_scenario_name(const fs::path& path) {
  return path.extension() == ".yaml" || path.extension() == ".yml";
}

void add_folder(const fs::path& folder, std::vector<std::string>& files) {
  std::vector<std::string> found;
  std::error_code error;
  fs::recursive_directory_iterator walk(folder, error);
  for (const auto end = fs::recursive_directory_iterator(); !error && walk != end;
       walk.increment(error)) {
    if (is_scenario_name(walk->path()) && walk->is_regular_file())
      found.push_back(walk->path().string());
  }
  if (error)
    bad_selection(fmt::format("{} cannot be read: {}", folder.string(), error.message()),
                  "check its permissions");
  if (found.empty())
    bad_selection(folder.string() + " holds no scenario (*.yaml)", "name another folder");
  std::sort(found.begin(), found.end());
  for (const std::string& file : found) {
    if (invalid_utf8(file) != std::string::npos) {
      bad_selection("a file name below " + folder.string() + " is not UTF-8", "rename it");
    }
  }
  files.insert(files.end(), found.begin(), found.end());
}

// Reads the expanded case of an earlier run (replay/<case>.json).
CaseSpec read_replay(const std::string& path) {
  const nlohmann::json parsed = read_json_object(path);
  try {
    return case_spec_from_json(parsed.contains("spec") ? parsed["spec"] : parsed);
  } catch (const nlohmann::json::exception& error) {
    bad_selection(fmt::format("{} is no expanded case ({})", path, error.what()),
                  "name a scenario, or a file that a run left in its replay folder");
  }
}

// The backends of --backend, all of which must run here; without it, those that can.
std::vector<std::string> wanted_backends(const RunArguments& arguments) {
  const std::string& device = arguments.world.device;
  for (const std::string& backend : arguments.backends) {
    const std::string reason = why_not(backend, device);
    if (reason.empty()) continue;
    bad_selection(fmt::format("{} ranks with tensors on {} cannot run here", backend, device),
                  reason);
  }
  std::vector<std::string> backends = arguments.backends;
  if (backends.empty()) backends = runnable_backends(device);
  if (backends.empty()) {
    bad_selection(fmt::format("no world can run here on {}", device), why_not("emulated", device));
  }
  return backends;
}

constexpr size_t kShownCases = 5;  // that are wrong, of one file

// Reads every file for every backend. Throws one error with the problems of all files.
class Reader {
 public:
  explicit Reader(const RunArguments& arguments) : arguments_(arguments) {}

  std::vector<CaseSpec> read(const std::vector<std::string>& files) {
    std::vector<CaseSpec> cases;
    for (const std::string& backend : wanted_backends(arguments_)) {
      for (const std::string& file : files) {
        if (broken_.count(file) == 0) read_file(file, backend, cases);
      }
    }
    if (!problems_.empty()) bad_selection(problems_, "");
    return cases;
  }

 private:
  void read_file(const std::string& file, const std::string& backend,
                 std::vector<CaseSpec>& cases) {
    try {
      if (fs::path(file).extension() == ".json") {
        CaseSpec spec = read_replay(file);
        if (!arguments_.backends.empty())
          spec.world.backend = backend;
        else if (spec.world.backend != backend)
          return;
        if (spec.skip.empty()) spec.skip = why_not(spec.world.backend, spec.world.device);
        cases.push_back(std::move(spec));
        return;
      }
      std::vector<std::string> wrong;
      for (CaseSpec& spec : scenario_cases(file, backend)) {
        try {
          require_unique(spec);
          require_right(spec);
          cases.push_back(std::move(spec));
        } catch (const Error& error) {
          wrong.push_back(error.what());
        }
      }
      if (!wrong.empty()) add_wrong_cases(file, std::move(wrong));
    } catch (const Error& error) {
      add_problem(file, error.what());
    }
  }

  void add_wrong_cases(const std::string& file, std::vector<std::string> wrong) {
    const size_t more = wrong.size() > kShownCases ? wrong.size() - kShownCases : 0;
    wrong.resize(wrong.size() - more);
    if (more > 0) wrong.push_back(fmt::format("{}: {} more of its cases are wrong", file, more));
    add_problem(file, fmt::format("{}", fmt::join(wrong, "\n")));
  }

  void add_problem(const std::string& file, const std::string& text) {
    broken_.insert(file);
    problems_ += (problems_.empty() ? "" : "\n") + text;
  }

  std::vector<CaseSpec> scenario_cases(const std::string& file, const std::string& backend) const {
    return parse_scenario(file, {.backend = backend,
                                 .device = arguments_.world.device,
                                 .workloads = arguments_.workloads})
        .cases;
  }

  // Throws before anything runs for a case that no mesh could run.
  static void require_right(const CaseSpec& spec) {
    try {
      check_case(spec);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kRefused) return;  // a verdict, given when the case runs
      bad_selection(fmt::format("{}:{}: {}: {}", spec.file, spec.line, spec.name, error.fact()),
                    error.fix());
    }
  }

  void require_unique(const CaseSpec& spec) {
    const auto [known, added] = file_of_.emplace(spec.name, spec.file);
    if (added || fs::equivalent(known->second, spec.file)) return;
    bad_selection(
        fmt::format("{} and {} both make the case {}", known->second, spec.file, spec.name),
        "give one of them another name");
  }

  const RunArguments& arguments_;
  std::set<std::string> broken_;
  std::string problems_;
  std::map<std::string, std::string> file_of_;
};

// "precision=float64", "tensor_parallel_size=2", "parallel.tensor_parallel_size=2", "tp=2".
bool has_value(const CaseSpec& spec, const std::string& filter) {
  const size_t equals = filter.find('=');
  if (equals == filter.npos) return false;
  const std::string key = filter.substr(0, equals), value = filter.substr(equals + 1);
  const auto& options = case_options();
  return std::any_of(options.begin(), options.end(), [&](const CaseOption& option) {
    const std::string last = option.path.substr(option.path.rfind('.') + 1);
    const bool is_key = key == option.path || key == last || key == option.short_name;
    if (!option.get || !is_key) return false;
    const nlohmann::json found = option.get(spec, Extent::kAll);
    return found.is_string() ? found == value : found.dump() == value;
  });
}

bool passes_filters(const RunArguments& arguments, const CaseSpec& spec) {
  if (!arguments.only.empty() && spec.name != arguments.only) return false;
  return std::all_of(arguments.filters.begin(), arguments.filters.end(),
                     [&](const std::string& filter) {
                       return has(spec.tags, filter) || has_value(spec, filter) ||
                              spec.name.find(filter) != std::string::npos;
                     });
}

// Cases tagged slow or manual run only with --all or with their tag, name or file.
bool asked_for(const RunArguments& arguments, const CaseSpec& spec) {
  if (arguments.all_tags || !arguments.only.empty() || has(arguments.paths, spec.file)) return true;
  for (const char* tag : {"slow", "manual"}) {
    if (has(spec.tags, tag) && !has(arguments.filters, tag)) return false;
  }
  return true;
}

void require_known_name(const std::string& only, const std::vector<CaseSpec>& cases) {
  std::vector<std::string> names;
  for (const CaseSpec& spec : cases) names.push_back(spec.name);
  if (only.empty() || has(names, only)) return;
  const std::string nearest = nearest_name(only, names);
  bad_selection(fmt::format("--only {}: no case has this name", only),
                nearest.empty() ? "`shardproof list` shows all names"
                                : fmt::format("did you mean {}?", nearest));
}

void shuffle(std::vector<CaseSpec>& cases, int64_t seed) {
  std::mt19937_64 generator(static_cast<uint64_t>(seed));
  for (size_t left = cases.size(); left > 1; --left) {
    std::swap(cases[left - 1], cases[generator() % left]);  // the same with every standard library
  }
}

// Why the started ranks cannot run the case; "" when they can.
std::string wrong_size(const RunArguments& arguments, const CaseSpec& spec) {
  const int64_t size = spec.parallel.world_size();
  if (!arguments.world_size || size == *arguments.world_size) return "";
  return fmt::format("needs {} ranks, {} were started", size, *arguments.world_size);
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

std::vector<std::string> find_scenario_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (invalid_utf8(path) != std::string::npos) bad_selection("a path is not UTF-8", "rename it");
    if (!fs::exists(path))
      bad_selection(path + " does not exist", "name a scenario file or folder");
    if (!fs::is_directory(path)) {
      files.push_back(path);
    } else if (looks_like_case_folder(path)) {
      bad_selection(path + " is a case folder", "use: shardproof check " + path);
    } else {
      add_folder(path, files);
    }
  }
  if (!paths.empty()) return files;
  const std::string folder = find_in_repository("scenarios");
  if (folder.empty())
    bad_selection("there is no folder scenarios here", "name a scenario file or folder");
  add_folder(folder, files);
  return files;
}

Selection select_cases(const RunArguments& arguments) {
  std::vector<CaseSpec> cases = Reader(arguments).read(find_scenario_files(arguments.paths));
  std::set<std::string> failed;
  if (!arguments.rerun_failed.empty()) {
    const auto names = unexpected_cases(arguments.rerun_failed);
    failed.insert(names.begin(), names.end());
  }
  require_known_name(arguments.only, cases);
  std::erase_if(cases, [&](const CaseSpec& spec) {
    return !passes_filters(arguments, spec) || !asked_for(arguments, spec) ||
           (!arguments.rerun_failed.empty() && failed.count(spec.name) == 0) ||
           (!arguments.names.empty() && !has(arguments.names, spec.name));
  });
  cases = deal(arguments, cases);
  if (arguments.shuffle) shuffle(cases, *arguments.shuffle);

  Selection selection;
  for (CaseSpec& spec : cases) {
    if (arguments.seed) spec.seed = *arguments.seed;
    if (spec.skip.empty()) spec.skip = wrong_size(arguments, spec);
    (spec.skip.empty() ? selection.cases : selection.skipped).push_back(std::move(spec));
  }
  return selection;
}

CaseSpec select_one_case(const RunArguments& arguments) {
  Selection selection = select_cases(arguments);
  auto& cases = selection.cases;
  cases.insert(cases.end(), selection.skipped.begin(), selection.skipped.end());
  if (cases.empty()) bad_selection("no case was selected", "`shardproof list` shows all cases");
  if (cases.size() > 1) {
    std::cerr << fmt::format("{} cases were selected; this is {} (--only chooses)\n", cases.size(),
                             cases.front().name);
  }
  return cases.front();
}

}  // namespace shardproof::sim
