// Whether gradients of parameters overflow in float16 only as they are summed: each position adds
// its part, and a tied weight the gradients of both of its users. Ranks that share positions sum
// those that each holds, and add the sums, and those of the users, in float32.
#pragma once

#include <cstdint>
#include <memory>

#include "golden/parted_sums.h"
#include "model/decoder.h"

namespace shardproof::golden {

inline constexpr uint32_t kAllWays = 0xffff;  // to share positions, of WeightTerms

// Of the backwards while it watches, since the last call of reset().
struct WeightTerms {
  bool watches = true;
  double most = 0;         // no element of a sum over some of the positions is larger in magnitude
  bool overflows = false;  // some gradient does
  // Ways to share the positions of which no part of any gradient overflows; a bit for each.
  uint32_t ways = kAllWays;
  bool shares_overflow = false;  // a gradient does not, and a share of its positions does
  void reset() { *this = WeightTerms(); }
  bool only_as_summed() const { return overflows && ways != 0; }
};

// Wraps every layer that has parameters, whatever its kind. Values and gradients stay as they are.
std::shared_ptr<WeightTerms> watch_weight_terms(Decoder& model);

}  // namespace shardproof::golden
