#include "sim/case/record/scatter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/case/record/magnitude.h"

namespace shardproof::sim {

void add_member(const TensorView& value, const TensorView* member, GoldenFacts& facts) {
  const Distance distance = member ? distance_between(value, *member) : Distance{};
  if (!member || (distance.a_finite && !distance.b_finite)) {
    facts.scatter = facts.factor_scatter = std::numeric_limits<double>::infinity();
    return;
  }
  facts.scatter = std::max(facts.scatter, distance.largest);
  facts.square = distance.square;
  if (distance.square > 0) {
    facts.factor_scatter =
        std::max(facts.factor_scatter, std::fabs(distance.along / distance.square));
  }
}

}  // namespace shardproof::sim
