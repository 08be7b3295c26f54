// results.json: the full results of a run, in the schema of reports/README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/report/run_folder.h"

namespace shardproof::sim::report {

constexpr const char* kResultsFormat = "shardproof-results/1";
constexpr int64_t kMaxResultsBytes = int64_t{1} << 30;  // of a file that is read back

// The parts of the file: the head, one entry for each case with ",\n" between them, the end. An
// entry is one line, so that `diff` can compare two runs. Always valid JSON and UTF-8. The head
// reads only the verdicts of `results`.
std::string results_head(const std::vector<judge::CaseResult>& results, const RunInfo& info);
std::string results_entry(size_t index, const judge::CaseResult& result, const RunInfo& info);
constexpr const char* kResultsEnd = "\n]}\n";

// "2026-01-31T12:00:00Z"
std::string utc_now();

}  // namespace shardproof::sim::report
