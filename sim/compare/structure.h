// Rearrangements of a tensor that explain what the ranks held: shifted, permuted, transposed, cut
// off.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/compare/diagnose.h"

namespace shardproof::sim {

// The known elements of a tensor, put together from pieces of several ranks.
struct Assembled {
  std::vector<int64_t> shape;
  bool token_dims = false;       // dims 0 and 1 are samples and positions
  bool zeros_are_exact = false;  // logprobs: a golden zero is padding
  std::vector<char> known;       // per element
  std::vector<double> actual, golden;
  double allowance = 0;

  bool equal(double a, double b) const;
};

// Nothing when the pieces are too large (over 4M elements) or of different shapes. Where ranks hold
// the same element the first piece counts.
std::optional<Assembled> assemble(const std::vector<const Piece*>& pieces);

std::optional<Explanation> explain_shift(const Assembled& tensor);
std::optional<Explanation> explain_permutation(const Assembled& tensor, const Mesh& mesh);
std::optional<Explanation> explain_transposition(const Assembled& tensor);
// Wrong only in a part: certain rows, positions, samples. Always the last resort, may be nothing.
std::optional<Explanation> explain_part(const Assembled& tensor);

}  // namespace shardproof::sim
