// What an earlier run left: for --resume, --rerun-failed, and a report of a run that was ended.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/report/run_folder.h"

namespace shardproof::sim::report {

// A run that left a journal: it ended before all of its cases had run.
struct EarlierRun {
  RunInfo info;                      // command, arguments, directory, version, started, skipped
  std::vector<CaseSpec> selected;    // name, file and backend alone
  std::vector<std::string> digests;  // of the selected cases
  // By place among the selected: verdict, and what the summary says of it.
  std::map<size_t, judge::CaseResult> finished = {};

  // Those that finished, in order.
  std::vector<judge::CaseResult> results() const;
  // The selected cases that did not finish, with `reason`.
  std::vector<CaseSpec> missing(const std::string& reason) const;
};

// Throws Error(kBadInput): no journal there, or not one of ours.
EarlierRun read_earlier_run(const std::string& folder);
bool holds_journal(const std::string& folder);
// False where the results are missing, or are what `report` made of a run that was ended.
bool has_final_results(const std::string& folder);

// The record "head" of a journal.
std::string journal_head(const RunInfo& info, const std::vector<CaseSpec>& selected);
// Two cases of the same digest are the same case of the same golden.
std::string case_digest(const CaseSpec& spec);

// What an earlier run is to run again.
struct UnexpectedCases {
  std::vector<CaseSpec> cases = {};         // name, backend, and file as it is found from here
  std::vector<std::string> arguments = {};  // of its command
  size_t not_run = 0;                       // cases that it did not come to
};

// The cases of an earlier run that did not end as expected, with `no_unresolved` also those with
// unresolved tensors. Throws Error(kBadInput): neither results.json nor a journal there, or not one
// of ours.
UnexpectedCases unexpected_cases(const std::string& folder, bool no_unresolved);

}  // namespace shardproof::sim::report
