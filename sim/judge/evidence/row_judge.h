// The rule by which a tensor of a rank is compared with the golden, for our own ranks and for
// recorded runs.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/judge/diff/result_row.h"
#include "sim/judge/diff/tensor_diff.h"
#include "sim/judge/evidence/failing_pieces.h"

namespace shardproof::sim::judge {

// A rank's tensor beside the golden's, and what only the caller knows of it.
struct Comparison {
  DiffTask task;
  std::string unresolved = {};   // why the allowance is too wide to find an error; "": it is not
  double share = 1;              // of an addend: the part of its values that counts
  double allowance_of_few = -1;  // by which the sum of addends is right in any case; below 0: none
  bool is_fed = false;           // by an optimizer that got the golden's gradients
  bool is_tried = false;  // a tensor that is wrong is compared again, so nothing is kept of it
  // Called where an element is wrong: what a free-running optimizer may add.
  std::function<std::optional<FreeRunningAllowance>()> free_running = {};
  // Called where one is still wrong. It may widen the allowance and compare again. Returns whether
  // it has set the row's outcome and reason.
  std::function<bool(DiffTask&, DiffResult&, ResultRow&)> excuse = {};
  // Called below float64 where all elements are right: an error that no single one shows, or "".
  std::function<std::string()> problem_of_all = {};
};

// Judges the rows of one rank.
class RowJudge {
 public:
  // `spec` and `golden` must outlive it. An addend that exceeds `addend_bytes`, together with those
  // before it, is kNotJudged.
  RowJudge(const CaseSpec& spec, const GoldenRecord& golden,
           size_t addend_bytes = std::numeric_limits<size_t>::max());

  // Sets what the plan and the golden say of the row. Returns whether the values can be compared;
  // otherwise the row has a problem: another shape or kind of dtype.
  static bool place(const TensorView& local, const GoldenTensor& golden, const IndexPlan& plan,
                    ResultRow& row);
  // Sets the outcome of a row that was placed. An addend is kAddend until all are summed.
  void compare(Comparison comparison, ResultRow& row);
  // Call it last: a row with a problem is wrong, and one that was compared is judged.
  static void finish(ResultRow& row);
  // The pieces of the first failing tensors, and all addends. Call it once.
  std::vector<Piece> take_pieces();

 private:
  void keep_addend(const Comparison& comparison, ResultRow& row);
  void check_all(const Comparison& comparison, ResultRow& row) const;

  const CaseSpec& spec_;
  const GoldenRecord& golden_;
  FailingPieces failing_;
  std::vector<Piece> addends_;
  size_t addend_bytes_, room_;
};

}  // namespace shardproof::sim::judge
