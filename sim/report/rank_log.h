// The log of one rank of one case: its ending and its calls.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::report {

// Either pointer may be null: a rank that died left no report.
std::string rank_log(const judge::CaseResult& result, int64_t rank, const RankEnding* ending,
                     const judge::RankReport* report);

}  // namespace shardproof::sim::report
