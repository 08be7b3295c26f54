// Selects the cases of a command: expands, filters, shards and orders the files.
#pragma once

#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/cli/arguments.h"

namespace shardproof::sim::cli {

struct Selection {
  std::vector<CaseSpec> cases;    // to run, in this order
  std::vector<CaseSpec> skipped;  // selected but not run; `skip` has the reason
  std::string digest = {};        // of what is selected in all shares: shares of one run have one
  // "share 6 of 6 has none of the 5 cases" where --shard leaves none of them; else "".
  std::string empty_share = {};
  int64_t slow = 0;  // left out for their tag alone, slow or manual; of all shares
};

// With the seed, schedules, relations and rows of the run of --rerun-failed, where these arguments
// give none: a case is run again as it ran. Standard error says which.
RunArguments as_they_ran(RunArguments arguments);

// Throws Error(kBadInput) with the problems of all files, for a path that is not a scenario, and
// when nothing is selected.
Selection select_cases(const RunArguments& arguments);

// The one case that a command is about: --only chooses among several, otherwise the first is taken,
// and standard error says so. Throws as select_cases, and when there is none.
CaseSpec select_one_case(const RunArguments& arguments);

// Throws Error(kBadInput): --only names none of these cases.
[[noreturn]] void unknown_case(const std::string& only, const std::vector<std::string>& names);

}  // namespace shardproof::sim::cli
