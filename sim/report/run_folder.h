// The folder that a run writes: results for programs and people, logs, and files to replay each
// failure.
//
//   results.json        everything, in the schema of reports/README.md
//   junit.xml           the same verdicts for CI systems
//   timeline.json       calls over time; opens in Perfetto and chrome://tracing
//   logs/<case>/rank<k>.log          calls and findings of one rank
//   replay/<case>.json               the expanded case of each one that did not end as expected
//   tensors/<case>.safetensors       golden and actual of the tensors that failed first
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim {

// Properties of the whole run.
struct RunInfo {
  std::string command;       // as typed
  std::string version;       // of shardproof
  std::string started;       // UTC, "2026-01-31T12:00:00Z"; "": now
  double seconds = 0;        // of the whole run, wall time
  bool interrupted = false;  // a signal ended it before all cases ran
  int exit_status = 0;
  std::map<std::string, std::string> environment;  // facts for a replay: host, cpu, torch, ...
  // Cases that did not run; spec.skip has the reason of each.
  std::vector<CaseSpec> skipped;
  // Files that belong to a case, by its name; for example tensors that its ranks wrote.
  std::map<std::string, std::vector<std::string>> files;
};

// Makes `out_dir`, or for "" runs/<UTC time>-<n> below the current folder, to which the link
// runs/latest then points. Returns its path. Throws Error(kBadInput) when it cannot be made.
std::string create_run_folder(const std::string& out_dir);

// Writes the files above into an existing folder as cases end, so that a long run holds only a few
// results. Each file is written whole and then renamed, results.json last. Throws Error(kBadInput)
// when the folder cannot be written.
class RunFiles {
 public:
  explicit RunFiles(const std::string& folder);
  ~RunFiles();  // drops cases that finish() has not joined
  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;

  // Adds the case with index `index` of the results. Call it once per index, in any order.
  void add(size_t index, const CaseResult& result, const RunInfo& info);
  // `results` are the added cases, in order. Those that ended as expected may lack their reports.
  void finish(const std::vector<CaseResult>& results, const RunInfo& info);

 private:
  std::string folder_;
  std::set<size_t> added_;
};

void write_run_files(const std::string& folder, const std::vector<CaseResult>& results,
                     const RunInfo& info);

// Makes a run folder, writes its files and returns its path.
std::string write_run_folder(const std::string& out_dir, const std::vector<CaseResult>& results,
                             const RunInfo& info);

// The names of the cases of an earlier run that did not end as expected, for --rerun-failed. Throws
// Error(kBadInput) when the folder has no results.json, or one of another format.
std::vector<std::string> unexpected_cases(const std::string& folder);

}  // namespace shardproof::sim
