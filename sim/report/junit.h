// junit.xml: one suite per scenario file, one test case per case. CI systems read it.
#pragma once

#include <string>
#include <vector>

#include "sim/report/run_folder.h"

namespace shardproof::sim {

// As expected: passed. An unexpected mismatch, refusal or match: failure. Anything else unexpected
// (a failed world, bad input, a fault in shardproof): error. Skips carry their reason.
std::string junit_xml(const std::vector<CaseResult>& results, const RunInfo& info);

}  // namespace shardproof::sim
