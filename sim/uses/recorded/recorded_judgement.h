// Judges a recorded run against another one of the same program.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sim/judge/verdict/verdict.h"
#include "sim/uses/recorded/recorded_run.h"

namespace shardproof::sim::recorded {

struct RecordedJudgement {
  judge::CaseResult result;  // its divergence, reports and account; spec.name is the run's folder
  Mesh mesh;                 // of the judged run
  std::string also;          // which other gradients of that step are wrong; "" for none
  std::string against;       // "runs/one (one rank)"; of answers the file
  std::string note;          // what was not compared; ""
};

// Every element of every piece is compared by the rules of sim/judge/diff/tolerance.h, and copies
// must be equal to the bit. Below float64 the scatter is that of the reference's repeats. Without
// kPerturbed of them in the run's precision, tensors below float64 are unresolved: their copies are
// compared, their values are not. The verdict is match, mismatch, or refused when no value could be
// judged. Throws Error(kBadInput) as read_recorded_run() and make_reference() do, and when the two
// runs did not record the same.
// `progress` is called with how many pieces were judged, of how many.
using Progress = std::function<void(int64_t done, int64_t all)>;
RecordedJudgement judge_recorded_run(RecordedRun run, RecordedRun reference,
                                     const Progress& progress = {});

// As describe_result() does for cases: one line for a match, else the finding.
std::string describe_judgement(const RecordedJudgement& judgement, bool color);

}  // namespace shardproof::sim::recorded
