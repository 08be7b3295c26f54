// timeline.json: the activity of each rank over time, as trace events for Perfetto and
// chrome://tracing. A case is a process, a rank is a thread, and every case starts at 0. In virtual
// time a rank's thread shows computing, waiting and exposed communication. Transfers have a thread
// for each rank and group, with {"rank": r} among their args. The last thread is the critical path.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::report {

// The parts of the file: the head, the events of each case with ",\n" between them, the end. An
// entry of RankReport::timeline without a name or a time is left out.
constexpr const char* kTimelineHead = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
std::string timeline_events(size_t index, const judge::CaseResult& result);
// The name of the case alone.
std::string timeline_name(size_t index, const judge::CaseResult& result);
constexpr const char* kTimelineEnd = "\n]}\n";

}  // namespace shardproof::sim::report
