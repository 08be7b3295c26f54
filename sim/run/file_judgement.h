// A result file held against the golden of a case.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"
#include "sim/run/golden_store.h"

namespace shardproof::sim {

// judge_result_file with the golden of `spec`, which is made if it is not there yet. What the
// golden throws is thrown here: Error(kBadInput) or kRefused; InternalError when its process
// failed.
CaseResult judge_file(const CaseSpec& spec, GoldenStore& goldens, WorldPool& pool,
                      const std::string& path);

}  // namespace shardproof::sim
