// results.json: the full results of a run, in the schema of reports/README.md.
#pragma once

#include <string>
#include <vector>

#include "sim/report/run_folder.h"

namespace shardproof::sim {

constexpr const char* kResultsFormat = "shardproof-results/1";

// One line per case, so that `diff` can compare two runs. Always valid JSON and UTF-8.
std::string results_json(const std::vector<CaseResult>& results, const RunInfo& info);

// The parts of results_json: the head, one entry for each case with ",\n" between them, the end.
// The head reads only the verdicts of `results`.
std::string results_head(const std::vector<CaseResult>& results, const RunInfo& info);
std::string results_entry(size_t index, const CaseResult& result, const RunInfo& info);
constexpr const char* kResultsEnd = "\n]}\n";

// "2026-01-31T12:00:00Z"
std::string utc_now();

}  // namespace shardproof::sim
