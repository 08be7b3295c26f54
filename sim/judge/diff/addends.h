// Sums the addends that ranks hold (Part::kPartial) and compares the sum with the golden.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/case/policy_stages.h"
#include "sim/judge/diff/result_row.h"

namespace shardproof::sim::judge {

// The errors in the addends of one tensor.
struct WrongAddends {
  std::vector<ResultRow> wrong;  // one per group of ranks whose sum is wrong
  std::vector<Piece> sums;       // one per wrong group; `actual` is the sum
  std::vector<int64_t> lacking;  // ranks whose addend is missing, or holds too few elements
  std::string lack;              // a sentence that says which addends are there
  bool is_mean = false;          // the addends are terms of a mean, already divided by their number
};

// Sums the addends of every tensor in rank order and sets the outcome of their rows:
//
//   kMatch, kMismatch   by the sum over the group of peers along the partial axes and over all
//                       microbatches; it adds up all addends of one golden element
//   kNotJudged          an addend of the group was not sent
//
// Every peer must hold an addend, and every element needs addends from equally many peers: from all
// peers, or, where the layout also cuts over a partial axis (a kv head that some ranks share), from
// the peers that hold that part. Returns the wrong tensors by their position in the golden.
std::map<GoldenPosition, WrongAddends> settle_addends(const StepMeshes& meshes,
                                                      std::vector<RankReport>& reports);

// Calls use(golden offset, local offset) for each element of a piece that is not padding.
template <class Use>
void for_each_element(const Piece& piece, const Use& use) {
  const size_t count = piece.actual.size();
  std::vector<size_t> at(piece.dims.size(), 0);
  for (size_t local = 0; local < count; ++local) {
    int64_t offset = 0;
    bool padding = false;
    for (size_t d = 0; d < at.size(); ++d) {
      const int64_t index = piece.dims[d][at[d]];
      padding = padding || index < 0;
      offset += index * piece.strides[d];
    }
    if (!padding) use(offset, local);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < piece.dims[d].size()) break;
      at[d] = 0;
    }
  }
}

}  // namespace shardproof::sim::judge
