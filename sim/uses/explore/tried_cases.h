// Runs the cases that a search tries, each once, and keeps how it failed.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sim/run/case_runner.h"
#include "sim/uses/explore/shrink.h"

namespace shardproof::sim::explore {

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
  size_t count() const { return endings_.size(); }
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
  std::chrono::steady_clock::time_point said_ = start_;
};

}  // namespace shardproof::sim::explore
