// Runs the two cases of a relation and compares them (sim/uses/relations).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/run/case_runner.h"
#include "sim/uses/relations/relations.h"

namespace shardproof::sim::relations {

// The first tensor that differs, in the order of the computation.
struct Difference {
  std::string tensor;
  std::string missing;           // "" or the run that has no such tensor
  std::vector<int64_t> index;    // of the largest error
  double first = 0, second = 0;  // the values there
  double error = 0, allowed = 0;
  int64_t wrong = 0, count = 0;  // elements
};

struct Comparison {
  std::optional<Difference> difference;
  int64_t tensors = 0, elements = 0;
  double worst_ratio = 0;  // largest used share of an allowance
  std::string worst_tensor;
  // Whether it would show nothing: no tensor was compared, or in the first case all gradients are
  // 0, or without gradients the loss, or where nothing trains all logprobs.
  bool is_empty = true;
  std::string not_finite = {};  // the first tensor of which both have no number, if any
};

// By the float64 rule of tolerance.h. Both after bring_back(). With `exact`, the bits must be
// equal.
Comparison compare_values(const CaseSpec& spec, const Values& first, const Values& second,
                          bool exact);
// "logprobs[1, 3] is 2 and, with 4 times the loss, 8: error 6, allowed 1e-10; 12 of 64 elements
// differ"
std::string difference_text(const Difference& difference, const std::string& changed);

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
