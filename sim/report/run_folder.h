// The folder that a run writes: results for programs and people, logs, and files to replay each
// failure.
//
//   results.json        everything, in the schema of reports/README.md
//   junit.xml           the same verdicts for CI systems
//   timeline.json       calls over time; opens in Perfetto and chrome://tracing
//   logs/<case>/rank<k>.log          calls of one rank
//   replay/<case>.json               the expanded case of each one that did not end as expected
//   tensors/<case>.safetensors       golden and actual of the tensors that failed first
//   relations/<n>/first, second      the two cases of a relation that does not hold (--relations)
//   journal             the finished cases, until every selected case has run (journal.h)
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"
#include "sim/report/journal.h"

namespace shardproof::sim::report {

// Properties of the whole run.
struct RunInfo {
  std::string command;                      // as it was typed
  std::vector<std::string> arguments = {};  // the same as words, without the program's name
  std::string selection = {};               // a digest of the cases of all shares
  std::string directory = {};               // where it was started
  std::string program = {};                 // a digest of the program
  std::string version;                      // of shardproof
  std::string started;                      // UTC, "2026-01-31T12:00:00Z"; "": now
  double seconds = 0;                       // of the whole run, wall time
  bool interrupted = false;                 // ended by a signal: not all cases ran
  // What was said of a run that another program recorded, which is not a case that can be replayed;
  // "" for cases.
  std::string recorded = {};
  // Whether cases that ended as expected are kept without rows of tensors, timelines and logs.
  bool compact = false;
  bool no_unresolved = false;  // a tensor that could not be judged fails its case
  int exit_status = 0;         // negative: the run was ended before it had one
  std::map<std::string, std::string>
      environment;  // what matters for a replay: host, cpu, torch, ...
  // Cases that the scenario or this machine skips; the reason of each is its spec.skip.
  std::vector<CaseSpec> skipped;
  // Selected cases that were not run, or not to their end; the reason of each is its spec.skip.
  std::vector<CaseSpec> not_run = {};
  // Files that belong to a case (by its name), for example tensors that its ranks wrote.
  std::map<std::string, std::vector<std::string>> files;
};

// Makes `out_dir`, or runs/<UTC time>-<n> below the current folder when it is "", and points the
// link `latest` beside a folder of that kind at it. Returns its path. Throws Error(kBadInput) when
// it cannot be made, is a file, or holds something that is not of a run, unless `force`.
std::string create_run_folder(const std::string& out_dir, bool force = false);

// Writes the files above into an existing folder while cases end, so that a run of a thousand cases
// holds no more than one of them, and one that is ended leaves all that it had found. Each file is
// written whole and then renamed, results.json last; the journal goes when every selected case has
// run. Throws Error(kBadInput): the folder cannot be written; another process writes there.
class RunFiles {
 public:
  // A new run; files of an earlier one in the same folder go.
  RunFiles(const std::string& folder, const RunInfo& info, const std::vector<CaseSpec>& selected);
  // Goes on with a run that left a journal.
  explicit RunFiles(const std::string& folder);
  // Before a run that goes on adds its first case: the results of its earlier part go.
  void drop_results();

  // The case at place `index` of the selected; each place once, in any order.
  void add(size_t index, const judge::CaseResult& result, const RunInfo& info);
  // `results`: the cases that were added, now or by the earlier run, in order. They may have lost
  // their reports by now.
  void finish(const std::vector<judge::CaseResult>& results, const RunInfo& info);

 private:
  std::string folder_;
  std::unique_ptr<JournalWriter> journal_;
};

// results.json, junit.xml and timeline.json from the journal, which stays.
void write_results(const std::string& folder, const std::vector<judge::CaseResult>& results,
                   const RunInfo& info);

// All at once.
void write_run_files(const std::string& folder, const std::vector<judge::CaseResult>& results,
                     const RunInfo& info);

// The paths of one case's files in a run folder.

// "003-tp.llama_tp2[precision=float64]"; the index makes it unique in the run.
std::string case_id(size_t index, const CaseSpec& spec);

inline std::string log_folder(const std::string& id) { return "logs/" + id; }
inline std::string log_file(const std::string& id, int64_t rank) {
  return log_folder(id) + "/rank" + std::to_string(rank) + ".log";
}
inline std::string replay_file(const std::string& id) { return "replay/" + id + ".json"; }
inline std::string tensor_file(const std::string& id) { return "tensors/" + id + ".safetensors"; }

// Whether the case is worth another run: it did not end as expected.
inline bool wants_replay(const judge::CaseResult& result) { return !result.as_expected; }
// Whether results, timeline and logs have all that the ranks reported of the case.
inline bool keeps_all(const judge::CaseResult& result, const RunInfo& info) {
  return !info.compact || !result.as_expected;
}
// True when ranks sent wrong tensors.
bool has_failing_tensors(const judge::CaseResult& result);

// The log of one rank of one case: its ending and its calls.

// Either pointer may be null: a rank that died left no report.
std::string rank_log(const judge::CaseResult& result, int64_t rank, const RankEnding* ending,
                     const judge::RankReport* report);

}  // namespace shardproof::sim::report
