// What the judge knows of Muon (src/optim/muon.h has the formulas; they are written here again).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"

namespace shardproof::sim::judge {

// The largest slope of the iteration on singular values: 3.4445^5, at 0. An error of a matrix grows
// by no more than that, in the sum of squares, because the iteration is an odd function of singular
// values.
inline constexpr double kSteepestOfMuon = 485;
// No element of an orthogonal matrix differs by more from that of another one: the iteration leaves
// no singular value above 1.3.
inline constexpr double kLargestOfMuon = 2.6;

// The matrices, of one size, that are made orthogonal each alone in a tensor [.., rows, columns].
// One follows the other in memory.
struct MuonMatrices {
  int64_t rows = 0, columns = 0;
  int64_t joined = 1;  // along the rows of [.., joined * rows, columns]
  int64_t size() const { return rows * columns; }
  double scale() const;  // of the update
};

// Whether Muon updates a parameter of this shape.
bool has_muon(const OptimizerSpec& optimizer, const std::string& parameter,
              const std::vector<int64_t>& shape);
MuonMatrices muon_matrices(const std::string& parameter, const std::vector<int64_t>& shape);

}  // namespace shardproof::sim::judge
