#include "sim/judge/diff/outcome.h"

#include "base/error.h"

namespace shardproof::sim::judge {

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kMatch:
      return "match";
    case Outcome::kMismatch:
      return "mismatch";
    case Outcome::kUnresolved:
      return "unresolved";
    case Outcome::kAddend:
      return "addend";
    case Outcome::kNotJudged:
      return "not_judged";
    case Outcome::kMissing:
      return "missing";
  }
  SHARDPROOF_ASSERT(false, "an outcome without a name");
}

const char* excuse_name(Excuse excuse) {
  switch (excuse) {
    case Excuse::kPadding:
      return "padding";
    case Excuse::kNotRecorded:
      return "not_recorded";
    case Excuse::kNotInFile:
      return "not_in_file";
    case Excuse::kUnresolved:
      return "unresolved";
    case Excuse::kNotDrawn:
      return "not_drawn";
    case Excuse::kElsewhere:
      return "elsewhere";
  }
  SHARDPROOF_ASSERT(false, "an excuse without a name");
}

}  // namespace shardproof::sim::judge
