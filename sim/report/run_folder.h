// The folder that a run leaves: results for programs and people, logs, and what replays each
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

// What is true of the run as a whole.
struct RunInfo {
  std::string command;       // as it was typed
  std::string version;       // of shardproof
  std::string started;       // UTC, "2026-01-31T12:00:00Z"; "": now
  double seconds = 0;        // of the whole run, wall time
  bool interrupted = false;  // ended by a signal: not all cases ran
  int exit_status = 0;
  std::map<std::string, std::string>
      environment;  // what matters for a replay: host, cpu, torch, ...
  // Cases that were not run; the reason of each is its spec.skip.
  std::vector<CaseSpec> skipped;
  // Files that belong to a case (by its name), for example tensors that its ranks wrote.
  std::map<std::string, std::vector<std::string>> files;
};

// Makes `out_dir`, or runs/<UTC time>-<n> below the current folder when it is "", and points the
// link `latest` beside a folder of that kind at it. Returns its path. Throws Error(kBadInput) when
// it cannot be made or is a file.
std::string create_run_folder(const std::string& out_dir);

// Writes the files above into an existing folder while cases end, so that a run of a thousand cases
// holds no more than one of them. Each file is written whole and then renamed, results.json last.
// Throws Error(kBadInput) when the folder cannot be written.
class RunFiles {
 public:
  explicit RunFiles(const std::string& folder);
  ~RunFiles();  // what finish() has not put together is dropped
  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;

  // The case at place `index` of the results; each place once, in any order.
  void add(size_t index, const CaseResult& result, const RunInfo& info);
  // `results`: the cases that were added, in order. Those that ended as expected may have lost
  // their reports by now.
  void finish(const std::vector<CaseResult>& results, const RunInfo& info);

 private:
  std::string folder_;
  std::set<size_t> added_;
};

// All at once.
void write_run_files(const std::string& folder, const std::vector<CaseResult>& results,
                     const RunInfo& info);

// Both; returns the folder.
std::string write_run_folder(const std::string& out_dir, const std::vector<CaseResult>& results,
                             const RunInfo& info);

// The names of the cases of an earlier run that did not end as expected, for --rerun-failed.
// Throws Error(kBadInput): no results.json there, or not one of ours.
std::vector<std::string> unexpected_cases(const std::string& folder);

}  // namespace shardproof::sim
