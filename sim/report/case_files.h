// The paths of one case's files in a run folder.
#pragma once

#include <cstdint>
#include <string>

#include "sim/judge/verdict/verdict.h"
#include "sim/report/run_folder.h"

namespace shardproof::sim::report {

// "003-tp.llama_tp2[precision=float64]"; the index makes it unique in the run.
std::string case_id(size_t index, const CaseSpec& spec);

inline std::string log_folder(const std::string& id) { return "logs/" + id; }
inline std::string log_file(const std::string& id, int64_t rank) {
  return log_folder(id) + "/rank" + std::to_string(rank) + ".log";
}
inline std::string replay_file(const std::string& id) { return "replay/" + id + ".json"; }
inline std::string tensor_file(const std::string& id) { return "tensors/" + id + ".safetensors"; }

// Whether the case is worth another run: it did not end as expected.
inline bool wants_replay(const judge::CaseResult& result) { return !result.as_expected; }
// Whether results, timeline and logs have all that the ranks reported of the case.
inline bool keeps_all(const judge::CaseResult& result, const RunInfo& info) {
  return !info.compact || !result.as_expected;
}
// True when ranks sent wrong tensors.
bool has_failing_tensors(const judge::CaseResult& result);

}  // namespace shardproof::sim::report
