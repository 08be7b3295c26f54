// Judges the reports of all ranks: one verdict with its first divergence.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/rank_ending.h"
#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/result_row.h"
#include "sim/judge/verdict/call_digest.h"
#include "sim/judge/verdict/coverage.h"
#include "sim/judge/verdict/fault_outcome.h"

namespace shardproof::sim::judge {

struct Divergence {
  std::string tensor;  // "grad.model.layers.1.mlp.down_proj.weight"
  Phase phase = Phase::kForward;
  int64_t step = 0;
  ResultKind kind = ResultKind::kValues;  // values, replicas or missing
  std::vector<int64_t> ranks;             // ranks that hold wrong values
  ResultRow worst{Outcome::kMissing};     // row of the worst rank
  std::string pattern;  // "every element is 2.00 x golden on ranks 0, 1; 2 is the size of tp"
  std::string likely;   // "summed over tp twice"
  std::vector<std::string> collectives;  // between the last right and the first wrong observation
  std::string last_good;                 // the last right observation before it; "" for none
  // Of the step before the last right observation, those whose label has the tensor's name.
  std::vector<std::string> earlier = {};
};

struct CaseResult {
  CaseSpec spec;
  Verdict verdict = Verdict::kInternal;
  ResultKind kind = ResultKind::kNone;
  std::string message;  // the finding; for refused and failed: fact and fix
  std::optional<Divergence> divergence;
  int64_t tensors_compared = 0, elements_compared = 0;
  Account account;         // elements that had to be judged, and those that were not
  double worst_ratio = 0;  // largest used share of an allowance
  std::string worst_tensor;
  bool as_expected = false;
  bool may_be_refused = false;  // a refusal is as expected, whatever the case expects
  std::string unexpected;       // why not; "" as expected
  double seconds = 0, golden_seconds = 0, compare_seconds = 0;
  std::vector<DigestFinding> digests;  // calls that did not deliver the data that was sent
  FaultOutcome outcome;                // detectors that saw the error, and the gradients
  std::vector<RankReport> reports;     // for results, timeline and pictures
  std::vector<RankEnding> endings;
  std::string replay;  // the command that replays it
};

// Counts what the rows say: tensors, elements, and the largest used share of an allowance, wrong
// tensors included.
void add_totals(CaseResult& result);
// The verdict by the divergence and by what was not judged. It is a match where there is neither.
void conclude(CaseResult& result);

// The samples of a microbatch of some rank, and the golden of these samples alone.
struct MicrobatchGolden {
  int64_t microbatch = 0;
  std::vector<int64_t> samples = {};
  std::shared_ptr<const GoldenRecord> golden = nullptr;
};
// Judges a case whose ranks have all ended. Endings other than `finished` outrank values. With
// goldens of `microbatches` it tries whether some of them count never or several times.
CaseResult judge(const CaseSpec& spec, const std::vector<RankEnding>& endings,
                 const std::vector<MicrobatchGolden>& microbatches = {});
// What a result file held of what its format demands.
struct FileJudgement {
  CaseResult result;
  int64_t demanded = 0;              // tensors of the golden that the format names
  std::vector<std::string> lacking;  // names of those that the file does not hold
};
// Judges a safetensors file of any framework, with the names of expected.safetensors
// (docs/cases.md), against the golden in `golden_fd`. The result is of the tensors that the file
// holds. A file with none is bad input, as are an unknown name and a wrong shape or dtype. Runs no
// tensor op.
FileJudgement judge_result_file(const CaseSpec& spec, int golden_fd, const std::string& path);
// "1 of 34 tensors were judged: FILE does not hold loss, grad.w and 31 more" as a line; "" when it
// holds all. Throws Error(kBadInput) when it does not, what it holds matches, and `allowed` is
// false.
std::string partial_line(const FileJudgement& judgement, const std::string& path, bool allowed);
// Exit status of a run: the first of 5, 2, 3, 1, 4 that applies, else 0 (docs/running.md). With
// `no_unresolved` a case with unresolved tensors counts as a mismatch.
int exit_status(const std::vector<CaseResult>& results, bool no_unresolved = false);
// Of a boundary ", received by stage 2 (chunk 1) in microbatch 3"; else empty.
std::string site_text(const ResultRow& row);
// Describes a failure from its position to its replay command; one line for a match.
std::string describe_result(const CaseResult& result, bool color);

}  // namespace shardproof::sim::judge
