// `run --resume`: goes on with an earlier run, whose finished cases do not run again.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "sim/cli/arguments.h"
#include "sim/cli/selection.h"
#include "sim/report/earlier_run.h"

namespace shardproof::sim::cli {

// An earlier run with which this one goes on, and its locked folder.
struct ResumedRun {
  std::string folder;  // without links
  report::EarlierRun run;
  std::unique_ptr<report::RunFiles> files;
};

// All of them throw Error(kBadInput).
ResumedRun earlier_run(const std::string& folder);
// The arguments of that run, with what may differ: how fast, how long, how strict, how it is shown.
RunArguments resumed_arguments(const RunArguments& given, const ResumedRun& resumed);
// Where it was started, so that relative paths are the same.
void enter_directory_of(const report::EarlierRun& earlier);
// The cases must be those of the earlier run, or results of two programs would lie in one folder.
void require_same_cases(const report::EarlierRun& earlier, const std::string& program,
                        const Selection& selection);
// The cases that need not run again. The schedules of a case are compared with each other while all
// of them run, so where one is left all run again.
std::vector<size_t> finished_of(const report::EarlierRun& earlier);

}  // namespace shardproof::sim::cli
