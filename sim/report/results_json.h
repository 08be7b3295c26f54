// results.json, the full results of a run, in the schema of reports/README.md, and what else a run
// writes of the same cases.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"
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

// The rows of all ranks of a case by tensor, for the heatmap of the report: an array in the
// golden's order; tensors that the golden lacks come last. See reports/README.md.
nlohmann::ordered_json tensor_table(const judge::CaseResult& result);

// The same in a few lines: of each step and phase the number of tensors, and for each rank one
// digest of them all.
nlohmann::ordered_json digest_table(const judge::CaseResult& result);

// junit.xml: one suite per scenario file, one test case per case. CI systems read it. One case of
// it as a line of JSON: `file`, `failed`, `in_error`, `seconds`, `xml`. As expected: it passed. An
// unexpected mismatch, refusal or match: failure. Anything else unexpected (a failed world, bad
// input, a fault in shardproof): error.
std::string junit_part(const judge::CaseResult& result, const RunInfo& info = {});

// The whole file, of the parts of all cases that ran. Skipped cases and those that did not run are
// test cases too, skipped with their reason.
std::string junit_xml(const std::vector<std::string>& parts, const RunInfo& info);

// The tensors that failed first as a safetensors file: golden and actual of each rank that sent
// them.
//
//   rank1/grad.model.norm.weight/golden    F64 [the piece's dims]   times the declared scale
//   rank1/grad.model.norm.weight/actual    F64 [the piece's dims]
//   rank1/grad.model.norm.weight/index     I64 [the piece's dims]   flat index in the golden
//                                                                   tensor; -1 at padding
//
// A second microbatch of the same tensor is "rank1/<name>#1". Metadata: case, phase and step.
// The bytes of the file; "" when no rank sent tensors. Uses no LibTorch because the control process
// runs no tensor op.
std::string failing_tensors_file(const judge::CaseResult& result);

}  // namespace shardproof::sim::report
