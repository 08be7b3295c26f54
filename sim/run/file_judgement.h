// Compares a result file with the golden of a case.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"
#include "sim/run/golden_store.h"

namespace shardproof::sim::run {

// Calls judge_result_file with the golden of `spec`, which is computed if needed. Rethrows the
// golden's Error(kBadInput) or Error(kRefused); throws InternalError when its process failed.
judge::FileJudgement judge_file(const CaseSpec& spec, GoldenStore& goldens, world::WorldPool& pool,
                                const std::string& path);

}  // namespace shardproof::sim::run
