// Makes a failing case as small as it can be while it fails the same way.
//
// A round runs candidates side by side: each has one setting that is smaller, or absent; then those
// that still fail the same way are joined, all of them or half of them, and the smallest joined
// case that fails the same way begins the next round. It ends when no candidate fails the same way,
// not even without an axis of the mesh and with another pattern.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"
#include "sim/run/case_runner.h"
#include "sim/uses/explore/scenario_text.h"

namespace shardproof::sim::explore {

// An edit that does not fail the same way.
struct KeptSetting {
  std::string what;       // "run.steps: 1"
  std::string signature;  // of the edited case, as of Signatures
  CaseSettings edited;
};

struct Shrunk {
  CaseSettings settings;
  int64_t cases_run = 0, rounds = 0;
  bool in_time = true;                 // false: the deadline ended the search
  std::vector<KeptSetting> kept = {};  // of the last round
};

// The signature of each case that could run (failure_signature), or "refused: .." where the checks
// before a run refuse it; "" for a match. A case that was not run in time is "not run".
using Signatures = std::function<std::vector<std::string>(const std::vector<CaseSettings>& cases)>;

// `in_time` is called before each round; `options` are those of a registered workload.
Shrunk shrink_case(CaseSettings settings, const std::string& signature, const Signatures& run,
                   const std::function<bool()>& in_time, const WorkloadOptions& options = {});

// How a case failed, without what changes when the case shrinks: numbers, ranks, layer numbers.

// Equal for two cases that fail the same way: verdict, kind, first wrong tensor up to its layer
// number, and pattern or cause up to its numbers. "" for a match.
std::string failure_signature(const judge::CaseResult& result);

// A signature without its pattern or cause.
std::string without_cause(const std::string& signature);
// What the signature of a case whose gradients are all 0 has, before its cause.
inline constexpr const char* kOfZeros = " of zeros";

// "mismatch (values): grad.model.layers.0.mlp.down_proj.weight of step 1: <pattern>; <cause>"
std::string failure_text(const judge::CaseResult& result);

// Runs the cases that a search tries, each once, and keeps how it failed.
class TriedCases {
 public:
  struct Ending {
    std::string signature, text;  // failure_signature and failure_text
    Verdict verdict = Verdict::kInternal;
    ResultKind kind = ResultKind::kNone;
  };

  // Folders that the settings name are relative to that of `file`. Nothing starts any more once
  // `in_time` is false, and nothing that ends after `interrupted` says anything about its case.
  TriedCases(run::CaseRunner& runner, std::string file, WorldChoice world,
             std::function<bool()> in_time, std::function<bool()> interrupted);

  // Throws Error(kBadInput): the checks before a run refuse it.
  judge::CaseResult run(const CaseSettings& settings);
  // Of each case, run side by side; of one that did not run "not run", of one that is refused
  // "refused: <why>".
  std::vector<std::string> signatures_of(const std::vector<CaseSettings>& cases);
  // Null: it was not tried.
  const Ending* ending_of(const CaseSettings& settings) const;
  // "4 ranks and 12 settings"
  std::string size_text(const CaseSettings& settings) const;

 private:
  void start(const CaseSettings& settings);
  void say_progress();

  run::CaseRunner& runner_;
  std::string file_;
  WorldChoice world_;
  std::function<bool()> in_time_, interrupted_;
  std::map<std::string, Ending> endings_;  // by the text of the settings
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point reported_ = start_;
};

}  // namespace shardproof::sim::explore
