// Sums what ranks hold as addends (Part::kPartial) and compares the sum with the golden.
#pragma once

#include <vector>

#include "mesh/mesh.h"
#include "sim/compare/result_row.h"

namespace shardproof::sim {

struct SummedAddends {
  std::vector<ResultRow> wrong;  // one per group of ranks whose sum is wrong
  std::vector<Piece> sums;       // of those groups: actual is the sum
  int64_t count = 0;             // elements compared
};

// `rows`: the partial rows of one tensor on all ranks; `pieces`: their addends. All microbatches of
// a group count: what they hold of one golden element is added up. Groups that miss a piece (too
// large to be sent) are skipped.
SummedAddends sum_addends(const Mesh& mesh, const std::vector<const ResultRow*>& rows,
                          const std::vector<const Piece*>& pieces);

// Calls use(golden offset, local offset) for each element of a piece that is no padding.
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

}  // namespace shardproof::sim
