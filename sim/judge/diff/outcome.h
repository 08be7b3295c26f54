// The result of comparing one observation, and the reasons that excuse elements from a comparison.
#pragma once

#include "base/enum_names.h"

namespace shardproof::sim::judge {

enum class Outcome {
  kMatch,
  kMismatch,
  kUnresolved,  // no rule can decide in this precision; ResultRow::reason says why
  kAddend,      // one addend of a sum, decided when the addends of all ranks are summed
  kNotJudged,   // nothing compared it, so the case cannot match; ResultRow::reason says why
  kMissing,     // the golden has it, and no rank observed it
};
constexpr std::array<const char*, 6> names_of(Outcome) {
  return {"match", "mismatch", "unresolved", "addend", "not_judged", "missing"};
}

// Why an element that a rank holds, or that the golden names, was not compared. The case is
// `internal` when an element is left out without an excuse. A skipped optimizer step needs none
// because the golden skips it too and names no tensors of it.
enum class Excuse {
  kPadding,      // the golden has no such element
  kNotRecorded,  // the case records no activations (record_activations: false)
  kNotInFile,    // `judge`: the result file lacks it
  kUnresolved,   // Outcome::kUnresolved
  kNotDrawn,     // in a row that the case does not sample (sample_rows)
  kElsewhere,    // the rank's model says that other ranks hold it; one of them must observe it
};
constexpr std::array<const char*, 6> names_of(Excuse) {
  return {"padding", "not_recorded", "not_in_file", "unresolved", "not_drawn", "elsewhere"};
}

}  // namespace shardproof::sim::judge
