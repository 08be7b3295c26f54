// timeline.json: what each rank did when, as trace events that Perfetto and chrome://tracing open.
// A case is a process, a rank a thread; every case starts at 0. Of virtual time a rank's thread
// shows computing, waiting and exposed communication; transfers have a thread for each rank and
// group, with {"rank": r} among their args. A last thread is the critical path.
#pragma once

#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim {

// Entries of RankReport::timeline that lack a name or a time are left out.
std::string timeline_json(const std::vector<CaseResult>& results);

// The same in parts: the head, the events of each case with ",\n" between them, the end.
constexpr const char* kTimelineHead = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
std::string timeline_events(size_t index, const CaseResult& result);
constexpr const char* kTimelineEnd = "\n]}\n";

}  // namespace shardproof::sim
