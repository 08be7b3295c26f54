// From the reports of all ranks to one verdict with its first divergence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/rank_ending.h"
#include "sim/judge/diff/result_row.h"
#include "sim/judge/verdict/call_digest.h"
#include "sim/judge/verdict/coverage.h"
#include "sim/judge/verdict/fault_outcome.h"

namespace shardproof::sim {

struct Divergence {
  std::string tensor;  // "grad.model.layers.1.mlp.down_proj.weight"
  Phase phase = Phase::kForward;
  int64_t step = 0;
  std::string kind;                    // values | replicas | rounding | missing
  std::vector<int64_t> ranks;          // that hold wrong values
  ResultRow worst{Outcome::kMissing};  // of the worst rank
  std::string pattern;  // "every element is 2.00 x golden on ranks 0, 1; 2 is the size of tp"
  std::string likely;   // "summed over tp twice"
  std::vector<std::string> collectives;  // between the last good and the first bad observation
  std::string last_good;                 // the observation before it that was right, "" none
};

struct CaseResult {
  CaseSpec spec;
  std::string verdict;  // match | mismatch | refused | failed | bad_input | internal
  std::string kind;
  std::string message;  // the finding in words; for refused and failed: fact and fix
  std::optional<Divergence> divergence;
  int64_t tensors_compared = 0, elements_compared = 0;
  Account account;         // what was to be judged, and what was not
  double worst_ratio = 0;  // largest share of an allowance that was used up
  std::string worst_tensor;
  bool as_expected = false;
  std::string unexpected;  // why not
  double seconds = 0, golden_seconds = 0, compare_seconds = 0;
  std::vector<DigestFinding> digests;  // calls that did not deliver what was sent
  FaultOutcome outcome;                // who saw that something is wrong, and the gradients
  std::vector<RankReport> reports;     // for results, timeline and pictures
  std::vector<RankEnding> endings;
  std::string replay;  // the one command that replays it
};

// Judges a case whose ranks all ended. Endings that are not `finished` outrank values.
CaseResult judge(const CaseSpec& spec, const std::vector<RankEnding>& endings);
// Judges a safetensors file that any framework wrote, with the names of expected.safetensors
// (docs/cases.md), against the golden in `golden_fd`. Names that the file lacks are listed in
// the message: a file that holds some of them is judged by what it holds, one that holds none is
// bad input, as are a name that the golden does not know and a wrong shape or dtype. Runs no tensor
// op.
CaseResult judge_result_file(const CaseSpec& spec, int golden_fd, const std::string& path);
// Exit status of a run: the first of 5, 2, 3, 1, 4 that applies, else 0 (docs/running.md).
// `no_unresolved`: a case with tensors that could not be resolved counts as a mismatch.
int exit_status(const std::vector<CaseResult>& results, bool no_unresolved = false);
// The failure from where it is to how it is seen again, or one line when it matched.
std::string describe_result(const CaseResult& result, bool color);

}  // namespace shardproof::sim
