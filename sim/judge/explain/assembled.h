// The known elements of a tensor, put together from pieces of several ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/judge/diff/result_row.h"
#include "sim/judge/evidence/explained.h"

namespace shardproof::sim {

struct Assembled {
  std::vector<int64_t> shape;
  bool token_dims = false;       // dims 0 and 1 are samples and positions
  bool zeros_are_exact = false;  // logprobs: a golden zero is padding
  std::vector<char> known;       // per element
  std::vector<double> actual, golden;
  double allowance = 0;
  bool copies_differ = false;  // beyond the allowance: ranks hold other values of one element
  double golden_size = 0;      // root mean square of the known golden elements
  int64_t wrong = 0;           // known elements beyond the allowance
  double difference = 0;       // sum of (actual - golden)^2 over the known elements

  bool is_wrong(size_t element) const;
  // Zero by definition, so that its value says nothing about where it came from.
  bool is_dropped(size_t element) const { return zeros_are_exact && golden[element] == 0; }
};

// Nothing when the pieces are too large (over 4M elements) or of different shapes. Where ranks hold
// the same element the first piece counts.
std::optional<Assembled> assemble(const std::vector<const Piece*>& pieces);

// "dim 1", "the positions".
std::string dim_name(const Assembled& tensor, size_t dim);

// element = outer * (size * inner) + index * inner + i
struct Walk {
  int64_t outer, size, inner;
};
Walk walk_along(const std::vector<int64_t>& shape, size_t dim);

// The best single factor: actual = factor * golden.
struct FactorSums {
  double golden = 0, product = 0, actual = 0;  // sums of squares
  int64_t count = 0;                           // golden elements other than 0

  void add(double a, double g) {
    golden += g * g;
    product += g * a;
    actual += a * a;
    count += g != 0;
  }
  double factor() const { return golden > 0 ? product / golden : 0; }
  bool fits(double slack) const {
    return golden > 0 && actual - factor() * product <= slack * slack * actual;
  }
};

// Adds up how golden elements at other places explain the actual ones; says early when they do not.
class Fit {
 public:
  explicit Fit(const Assembled& tensor) : Fit(tensor, tensor.difference) {}
  // `difference`: the squared one of the part that it is tried on.
  Fit(const Assembled& tensor, double difference)
      : tensor_(tensor), most_left_((1 - kLeastExplained) * difference) {}
  // False when too much is left: the proposal is no explanation.
  bool add(int64_t element, int64_t source);
  const Explained& sums() const { return sums_; }
  // Whether it may be claimed of the whole tensor, as one of e^`choice_nats` proposals.
  bool explains_tensor(double choice_nats) const;

 private:
  const Assembled& tensor_;
  double most_left_;
  Explained sums_;
};

}  // namespace shardproof::sim
