// timeline.json: what each rank did when, as trace events that Perfetto and chrome://tracing open.
// A case is a process, a rank a thread; every case starts at 0.
#pragma once

#include <string>
#include <vector>

#include "sim/compare/verdict.h"

namespace shardproof::sim {

// Entries of RankReport::timeline that lack a name or a time are left out.
std::string timeline_json(const std::vector<CaseResult>& results);

}  // namespace shardproof::sim
