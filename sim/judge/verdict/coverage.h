// How many elements of each tensor were to be judged, were judged, and were rightly left out.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/judge/diff/result_row.h"

namespace shardproof::sim {

// Elements, over all ranks.
struct Coverage {
  int64_t demanded = 0, judged = 0;
  std::map<Excuse, int64_t> excused = {};

  int64_t left_out() const;  // neither judged nor excused
};

// A tensor of which something was not judged, or whose outcome is kUnresolved.
struct UnjudgedTensor {
  std::string tensor;  // "" when it is not one tensor: `reason` says what
  Phase phase = Phase::kForward;
  int64_t step = 0;
  int64_t elements = 0;
  std::string reason;
};

struct Account {
  Coverage elements;                                   // of all tensors together
  int64_t tensors = 0;                                 // of which something was judged
  int64_t all_tensors = 0;                             // that some rank observed
  std::vector<UnjudgedTensor> not_judged, unresolved;  // in the golden's order
};

// From the rows of all ranks, addends settled. A tensor counts as unresolved when some row of it
// is and none is wrong.
Account account_of(const CaseSpec& spec, const std::vector<RankReport>& reports);

// "3 of 412 tensors not resolvable in float16 (first: loss of step 8)"; "" when there are none.
std::string unresolved_text(const Account& account, const std::string& precision);
// "2 of 412 tensors were not judged; the first: 96 elements of grad.w of step 1, because ..".
std::string not_judged_text(const Account& account);

}  // namespace shardproof::sim
