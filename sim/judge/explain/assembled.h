// The known elements of a tensor, assembled from the pieces of several ranks.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "sim/judge/diff/factor_sums.h"
#include "sim/judge/diff/result_row.h"
#include "sim/judge/evidence/explained.h"

namespace shardproof::sim::judge {

struct Assembled {
  std::string name = {};
  std::vector<int64_t> shape;
  std::vector<int64_t> drawn;       // the rows of dim 0 that are here; empty: all
  bool token_dims = false;          // dims 0 and 1 are samples and positions
  bool may_have_positions = false;  // it is of the forward or backward pass, and no weight
  bool zeros_are_exact = false;     // logprobs: a golden zero is padding
  std::vector<char> known;          // one flag per element
  std::vector<double> actual, golden;
  double allowance = 0;
  // Ranks hold values of one element that differ by more than the allowance.
  bool copies_differ = false;
  double golden_size = 0;  // root mean square of the known golden elements
  int64_t wrong = 0;       // known elements whose error exceeds the allowance
  double difference = 0;   // sum of (actual - golden)^2 over the known elements

  // Minus the logarithm of the probability that two elements other than 0 have one golden value.
  // Where values are few, as those of a selection bias, chance puts one in the place of another.
  double nats_of_values = std::numeric_limits<double>::infinity();

  bool is_wrong(size_t element) const;
  bool has_experts() const;  // at each index of dim 0
  // Whether elements from other places may be claimed to explain it, as one of e^`choice_nats`
  // proposals.
  bool is_convinced_by(const Explained& sums, double choice_nats) const;
  // Whether the element is zero by definition, so that its value is not evidence of its origin.
  bool is_dropped(size_t element) const { return zeros_are_exact && golden[element] == 0; }
};

// Returns nothing when the pieces are too large (over 4M elements) or differ in shape. Where
// several ranks hold an element the first piece counts.
std::optional<Assembled> assemble(const std::vector<const Piece*>& pieces);

// The vector along the last dim that all rows have beside factor * golden: the mean of
// actual - factor * golden over the rows. Empty where a column has fewer than 4 known elements.
struct VectorBeside {
  std::vector<double> mean;
  int64_t rows = 0;  // the known elements of the column that has the fewest
};
VectorBeside vector_beside(const Assembled& tensor, double factor);
// How well factor * golden + beside explains the tensor.
Explained explained_by(const Assembled& tensor, double factor, const std::vector<double>& beside);

// "dim 1", "the positions", "the experts".
std::string dim_name(const Assembled& tensor, size_t dim);

// element = outer * (size * inner) + index * inner + i
struct Walk {
  int64_t outer, size, inner;
};
Walk walk_along(const std::vector<int64_t>& shape, size_t dim);

// Sums how well golden elements from other positions explain the actual ones.
class Fit {
 public:
  explicit Fit(const Assembled& tensor) : Fit(tensor, tensor.difference) {}
  // `difference` is the squared difference of the part on which the proposal is tried.
  Fit(const Assembled& tensor, double difference)
      : tensor_(tensor), most_left_((1 - kLeastExplained) * difference) {}
  // Returns false when too much is left: the proposal is not an explanation.
  bool add(int64_t element, int64_t source);
  const Explained& sums() const { return sums_; }
  // Whether it may be claimed of the whole tensor, as one of e^`choice_nats` proposals.
  bool explains_tensor(double choice_nats) const;

 private:
  const Assembled& tensor_;
  double most_left_;
  Explained sums_;
};

}  // namespace shardproof::sim::judge
