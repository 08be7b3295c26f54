// One value everywhere: the tensor was never filled, or was cut off.
#include <fmt/format.h>

#include <set>

#include "sim/judge/diff/addends.h"
#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {

constexpr size_t kFewestForConstant = 8;  // elements, and different golden values

std::optional<Proposal> propose_constant(const Difference& difference) {
  std::set<double> actual, golden;
  size_t count = 0;
  for (const Piece* piece : difference.symptoms.pieces) {
    for_each_element(*piece, [&](int64_t, size_t local) {
      if (actual.size() > 1) return;
      actual.insert(piece->actual[local]);
      golden.insert(piece->golden[local]);
      ++count;
    });
  }
  if (actual.size() != 1) return std::nullopt;
  const double value = *actual.begin();
  if (value == 0) {
    return Proposal{.pattern = "every element is 0",
                    .likely = "it was never filled, or a gradient was cut off"};
  }
  if (count < kFewestForConstant || golden.size() < kFewestForConstant) return std::nullopt;
  return Proposal{.pattern = fmt::format("every element is {:.6g}", value),
                  .likely = "it was never filled, and is what it was made with",
                  .description = kFreeNumber};
}

}  // namespace shardproof::sim::judge
