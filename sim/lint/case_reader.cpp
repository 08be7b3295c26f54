#include "sim/lint/case_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>

#include "base/count_of.h"
#include "base/error.h"
#include "base/read_text.h"
#include "base/utf8.h"
#include "sim/case/scenario/case_folder.h"
#include "sim/case/scenario/scenario.h"
#include "sim/run/case_check.h"

namespace shardproof::sim::lint {

namespace fs = std::filesystem;

namespace {

// Reads the expanded case of an earlier run (replay/<case>.json).
CaseSpec read_replay(const std::string& path) {
  const nlohmann::json parsed = read_json_object(path);
  try {
    CaseSpec spec = case_spec_from_json(parsed.contains("spec") ? parsed["spec"] : parsed);
    spec.file = path;  // its scenario may have changed, or ran with options of the command
    spec.line = 0;
    return spec;
  } catch (const nlohmann::json::exception& error) {
    throw_bad_input(fmt::format("{} is not an expanded case ({})", path, json_problem(error)),
                    "name a scenario, or a file that a run left in its replay folder");
  }
}

constexpr size_t kShownCases = 5;  // that are wrong, of one file

// Reads every file for every backend. Throws one error with the problems of all files.
class Reader {
 public:
  explicit Reader(const ReadOptions& options) : options_(options) {}

  std::vector<CaseSpec> read(const std::vector<std::string>& files) {
    std::vector<CaseSpec> cases;
    for (const Backend backend : options_.backends) {
      for (const std::string& file : files) {
        if (broken_.count(file) == 0) read_file(file, backend, cases);
      }
    }
    if (!problems_.empty()) throw_bad_input(problems_, "");
    return cases;
  }

 private:
  void read_file(const std::string& file, Backend backend, std::vector<CaseSpec>& cases) {
    try {
      if (fs::path(file).extension() == ".json") {
        CaseSpec spec = read_replay(file);
        const Backend own = spec.world.backend;
        if (options_.replaces_backend)
          spec.world.backend = backend;
        else if (spec.world.backend != backend)
          return;
        require_unique(spec, fmt::format("{} on {}", spec.name, own));
        require_right(spec);
        cases.push_back(std::move(spec));
        return;
      }
      std::vector<std::string> wrong;
      for (CaseSpec& spec : scenario_cases(file, backend)) {
        try {
          require_unique(spec, spec.name);
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

  std::vector<CaseSpec> scenario_cases(const std::string& file, Backend backend) const {
    return parse_scenario(
               file,
               {.backend = backend, .device = options_.device, .workloads = options_.workloads})
        .cases;
  }

  // Throws before anything runs for a case that no mesh could run.
  static void require_right(const CaseSpec& spec) {
    try {
      run::check_case(spec);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kRefused) return;  // a verdict, given when the case runs
      const std::string line = spec.line > 0 ? fmt::format(":{}", spec.line) : "";
      throw_bad_input(fmt::format("{}{}: {}: {}", spec.file, line, spec.name, error.fact()),
                      error.fix());
    }
  }

  // `key`: what no other file may make.
  void require_unique(const CaseSpec& spec, const std::string& key) {
    const auto [known, added] = file_of_.emplace(key, spec.file);
    if (added || fs::equivalent(known->second, spec.file)) return;
    throw_bad_input(
        fmt::format("{} and {} both make the case {}", known->second, spec.file, spec.name),
        "give one of them another name");
  }

  const ReadOptions& options_;
  std::set<std::string> broken_;
  std::string problems_;
  std::map<std::string, std::string> file_of_;
};

}  // namespace

std::vector<CaseSpec> read_cases(const std::vector<std::string>& files,
                                 const ReadOptions& options) {
  return Reader(options).read(files);
}

namespace fs = std::filesystem;

namespace {

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
    throw_bad_input(fmt::format("{} cannot be read: {}", folder.string(), error.message()),
                    "check its permissions");
  if (found.empty())
    throw_bad_input(folder.string() + " holds no scenario (*.yaml)", "name another folder");
  std::sort(found.begin(), found.end());
  for (const std::string& file : found) {
    if (invalid_utf8(file) != std::string::npos) {
      throw_bad_input("a file name below " + folder.string() + " is not UTF-8", "rename it");
    }
  }
  files.insert(files.end(), found.begin(), found.end());
}

}  // namespace

std::string find_in_repository(const std::string& relative_path) {
  if (fs::exists(relative_path)) return relative_path;
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  while (!error && folder.has_relative_path()) {
    if (fs::exists(folder / relative_path)) return (folder / relative_path).string();
    folder = folder.parent_path();
  }
  return "";
}

std::string own_scenario(const std::string& path) {
  if (fs::exists(path) || !path.starts_with("scenarios/")) return path;
  const std::string own = find_in_repository(path);
  return own.empty() ? path : own;
}

namespace {

// Without the files that an earlier path names, in other words or through a link.
std::vector<std::string> each_once(const std::vector<std::string>& files) {
  std::vector<std::string> once;
  std::set<fs::path> seen;
  for (const std::string& file : files) {
    if (seen.insert(fs::canonical(file)).second) once.push_back(file);
  }
  return once;
}

}  // namespace

std::vector<std::string> find_scenario_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& given : paths) {
    if (invalid_utf8(given) != std::string::npos)
      throw_bad_input("a path is not UTF-8", "rename it");
    const std::string path = own_scenario(given);
    if (!fs::exists(path))
      throw_bad_input(path + " does not exist", "name a scenario file or folder");
    if (!fs::is_directory(path)) {
      files.push_back(path);
    } else if (looks_like_case_folder(path)) {
      throw_bad_input(path + " is a case folder", "use: shardproof check " + path);
    } else {
      add_folder(path, files);
    }
  }
  if (!paths.empty()) return each_once(files);
  const std::string folder = find_in_repository("scenarios");
  if (folder.empty())
    throw_bad_input("there is no folder scenarios here", "name a scenario file or folder");
  add_folder(folder, files);
  return files;
}

int lint(const std::vector<std::string>& paths, const std::vector<KnownWorkload>& workloads) {
  const std::vector<std::string> files = find_scenario_files(paths);
  // Errors do not depend on the world.
  const auto cases = read_cases(
      files, {.backends = {Backend::kEmulated}, .replaces_backend = true, .workloads = workloads});
  std::cout << run::unread_keys_notes(cases);
  std::cout << fmt::format("{}, {}: no errors\n", count_of(std::ssize(files), "file"),
                           count_of(std::ssize(cases), "case"));
  return 0;
}

}  // namespace shardproof::sim::lint
