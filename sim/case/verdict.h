// Verdicts of cases, and the kinds of results that cases and ranks come to.
#pragma once

#include "sim/case/enum_json.h"

namespace shardproof::sim {

enum class Verdict { kMatch, kMismatch, kRefused, kFailed, kBadInput, kInternal };
constexpr std::array<const char*, 6> names_of(Verdict) {
  return {"match", "mismatch", "refused", "failed", "bad_input", "internal"};
}

// How a rank ended, or what a verdict rests on.
enum class ResultKind {
  kNone,  // of a match
  // A rank:
  kFinished,
  kDied,
  kHung,
  kThrew,
  kDeadlock,
  kDisagreement,
  kAborted,
  kRefused,
  kBadInput,
  kNeverWaited,
  kInFlight,
  kInternal,
  // The golden, beside some of those:
  kFailed,
  kInterrupted,
  // A case whose ranks all finished:
  kValues,
  kReplicas,
  kMissing,
  kMetrics,
  kDigest,
  kSchedule,
  kNotJudged,
  kUnresolved,
  kFault,
  kRace,      // another schedule of the ranks gave other values
  kRelation,  // a changed case gave values that do not follow from those of the case
};
constexpr std::array<const char*, 26> names_of(ResultKind) {
  return {"",         "finished",   "died",         "hung",
          "threw",    "deadlock",   "disagreement", "aborted",
          "refused",  "bad_input",  "never_waited", "in_flight",
          "internal", "failed",     "interrupted",  "values",
          "replicas", "missing",    "metrics",      "digest",
          "schedule", "not_judged", "unresolved",   "fault",
          "race",     "relation"};
}

}  // namespace shardproof::sim
