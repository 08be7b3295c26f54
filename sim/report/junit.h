// junit.xml: one suite per scenario file, one test case per case. CI systems read it.
#pragma once

#include <string>
#include <vector>

#include "sim/report/run_folder.h"

namespace shardproof::sim::report {

// One case of it as a line of JSON: `file`, `failed`, `in_error`, `seconds`, `xml`. As expected: it
// passed. An unexpected mismatch, refusal or match: failure. Anything else unexpected (a failed
// world, bad input, a fault in shardproof): error.
std::string junit_part(const judge::CaseResult& result, const RunInfo& info = {});

// The whole file, of the parts of all cases that ran. Skipped cases and those that did not run are
// test cases too, skipped with their reason.
std::string junit_xml(const std::vector<std::string>& parts, const RunInfo& info);

}  // namespace shardproof::sim::report
