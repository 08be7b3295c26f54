// junit.xml: one suite per scenario file, one test case per case. CI systems read it.
#pragma once

#include <string>
#include <vector>

#include "sim/report/run_folder.h"

namespace shardproof::sim {

// A case that ended as expected passes. An unexpected mismatch, refusal or match is a failure. Any
// other unexpected result (a failed world, bad input, an error of shardproof) is an error. Skipped
// cases have their reason.
std::string junit_xml(const std::vector<CaseResult>& results, const RunInfo& info);

}  // namespace shardproof::sim
