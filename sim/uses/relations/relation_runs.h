// Runs the two cases of a relation and compares them (sim/uses/relations).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "sim/run/case_runner.h"
#include "sim/uses/relations/relations.h"

namespace shardproof::sim::relations {

class RelationRuns {
 public:
  // Files of changed cases lie under `folder` while they run; those of a finding stay.
  RelationRuns(run::CaseRunner& runner, std::string folder)
      : runner_(runner), folder_(std::move(folder)) {}
  ~RelationRuns();
  RelationRuns(const RelationRuns&) = delete;
  RelationRuns& operator=(const RelationRuns&) = delete;

  // `named` is a case of with_relations(). Calls `done` once, now or later in the runner's waits.
  void start(const CaseSpec& named, const run::CaseRunner::Done& done);

 private:
  struct Base;  // the case itself, which many relations compare with
  struct Job;
  void start_pair(const std::shared_ptr<Job>& job);
  void start_base(const std::shared_ptr<Base>& base);
  void finish(const std::shared_ptr<Job>& job);
  static void compare(Job& job, judge::CaseResult& result);

  run::CaseRunner& runner_;
  std::string folder_;
  int64_t count_ = 0;
  std::shared_ptr<Base> base_;  // of the last case
};

}  // namespace shardproof::sim::relations
