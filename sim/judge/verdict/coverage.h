// How many elements of each tensor had to be judged, were judged, and were excused.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/judge/diff/result_row.h"

namespace shardproof::sim::judge {

// Elements, over all ranks.
struct Coverage {
  int64_t demanded = 0, judged = 0;
  std::map<Excuse, int64_t> excused = {};

  int64_t left_out() const;  // neither judged nor excused
};

// A tensor with elements that were not judged, or whose outcome is kUnresolved.
struct UnjudgedTensor {
  std::string tensor;  // "" when `reason` does not concern one tensor
  Phase phase = Phase::kForward;
  int64_t step = 0;
  int64_t elements = 0;
  std::string reason;
};

// What a match rests on beside the number of elements.
struct Grounds {
  int64_t scored_tokens = -1;  // whose logprobs count in the loss or are scored; -1: not known
  int64_t gradients = 0;       // of parameters, over all steps
  int64_t gradients_not_zero = 0;
  int64_t gradients_of_roundings = 0;  // of those: a match, which any value of its size would be
  bool trains = false;                 // the workload does
  bool proves = false;                 // it is a registered workload
  bool scores_something = false;       // a logprob or score is not 0
  bool has_loss = false;               // one is not 0
  // All gradients are 0, with the loss or without a skipped step; without gradients the loss is, or
  // without one all logprobs are.
  bool is_empty = false;
};

struct Account {
  Coverage elements;                                   // of all tensors together
  int64_t tensors = 0;                                 // tensors with judged elements
  int64_t all_tensors = 0;                             // tensors that some rank observed
  std::vector<UnjudgedTensor> not_judged, unresolved;  // in the golden's order
  Grounds grounds;
};

// Counts the rows of all ranks after settle_addends(). A tensor is unresolved when one of its rows
// is and none is wrong.
Account account_of(const CaseSpec& spec, const std::vector<RankReport>& reports);

// "3 of 412 tensors not resolvable in float16 (first: loss of step 8)"; "" when there are none.
std::string unresolved_text(const Account& account, Precision precision);

// A case that trains had no gradient: every step was skipped, or the case keeps none.
inline bool lacks_gradients(const Grounds& grounds) {
  return grounds.trains && grounds.gradients == 0;
}

// "43 scored tokens, 23 of 23 gradients not all zero"; "" when neither is known.
std::string grounds_text(const Grounds& grounds);
// Why a match on these grounds would show nothing, with the fix; "" when it would show something.
std::string empty_text(const Grounds& grounds);
// The same without a fix, for runs that no scenario describes.
std::string zeros_text(const Grounds& grounds);
// That no gradient is larger than roundings, with the fix; "" where one is.
std::string roundings_text(const Grounds& grounds);
// Why nothing was judged: the reason of the first unresolved tensor. "" if anything was.
std::string nothing_judged_text(const Account& account);
// "2 of 412 tensors were not judged; the first: 96 elements of grad.w of step 1, because ..".
std::string not_judged_text(const Account& account);

}  // namespace shardproof::sim::judge
