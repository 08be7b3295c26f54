// What became of comparing one observation, and why a part of it may rightly be left out.
#pragma once

namespace shardproof::sim {

enum class Outcome {
  kMatch,
  kMismatch,
  kUnresolved,  // no honest rule can decide in this precision; ResultRow::reason says why
  kAddend,      // one addend of a sum: decided when the addends of all ranks are summed
  kNotJudged,   // nothing compared it: the case cannot match; ResultRow::reason says why
  kMissing,     // the golden has it, and nobody observed it
};
const char* outcome_name(Outcome outcome);

// Why an element that a rank holds, or the golden names, was not compared. Anything that is left
// out without one of these makes the case `internal`. What a skipped optimizer step leaves out
// needs none: the golden skips it too and does not name it.
enum class Excuse {
  kPadding,      // the golden has no such element
  kNotRecorded,  // the case asks for no activations (record_activations: false)
  kNotInFile,    // `judge`: the result file does not hold it
  kUnresolved,   // Outcome::kUnresolved
};
const char* excuse_name(Excuse excuse);

}  // namespace shardproof::sim
