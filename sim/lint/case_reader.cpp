#include "sim/lint/case_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/read_text.h"
#include "sim/case/scenario/scenario.h"
#include "sim/run/case_check.h"

namespace shardproof::sim::lint {

namespace fs = std::filesystem;

namespace {

// Reads the expanded case of an earlier run (replay/<case>.json).
CaseSpec read_replay(const std::string& path) {
  const nlohmann::json parsed = read_json_object(path);
  try {
    return case_spec_from_json(parsed.contains("spec") ? parsed["spec"] : parsed);
  } catch (const nlohmann::json::exception& error) {
    throw_bad_input(fmt::format("{} is no expanded case ({})", path, json_problem(error)),
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
        if (options_.replaces_backend)
          spec.world.backend = backend;
        else if (spec.world.backend != backend)
          return;
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
      throw_bad_input(fmt::format("{}:{}: {}: {}", spec.file, spec.line, spec.name, error.fact()),
                      error.fix());
    }
  }

  void require_unique(const CaseSpec& spec) {
    const auto [known, added] = file_of_.emplace(spec.name, spec.file);
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

}  // namespace shardproof::sim::lint
