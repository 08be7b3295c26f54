// A file of a case's answers (the names of expected.safetensors, docs/cases.md) as a recorded run
// of one rank: two such files are judged like two runs.
#pragma once

#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/uses/recorded/recorded_run.h"

namespace shardproof::sim::recorded {

// Throws Error(kBadInput) for a file that is unreadable or holds no tensor, a name that the format
// does not have, a step that the case does not have, and one tensor with two values under its two
// names ("loss" is "step1.loss").
RecordedRun read_answers(const std::string& path, const CaseSpec& spec);

// Throws Error(kBadInput) with the nearest name for a tensor that the reference does not hold.
void require_known_answers(const RecordedRun& answers, const RecordedRun& reference);

// The names of the reference's tensors that `answers` does not hold.
std::vector<std::string> lacking_answers(const RecordedRun& answers, const RecordedRun& reference);

}  // namespace shardproof::sim::recorded
