#include "sim/judge/explain/structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/judge/diff/addends.h"

namespace shardproof::sim {
namespace {

constexpr int64_t kLargestShift = 16;

double most_left(const Assembled& tensor) { return (1 - kLeastExplained) * tensor.difference; }

// Whether a rearrangement of the whole tensor is an explanation.
bool fits(const Assembled& tensor, const Fit& fit, double choice_nats) {
  const Explained& sums = fit.sums();
  return 2 * sums.wrong >= tensor.wrong && sums.evidence >= 2 &&
         sums.convinces(tensor.allowance, tensor.golden_size, choice_nats);
}

std::optional<Fit> shifted_by(const Assembled& tensor, const Walk& walk, int64_t shift,
                              double choice_nats) {
  Fit fit(tensor, most_left(tensor));
  for (int64_t outer = 0; outer < walk.outer; ++outer) {
    for (int64_t index = 0; index < walk.size; ++index) {
      const int64_t source = index - shift;
      if (source < 0 || source >= walk.size) continue;
      for (int64_t i = 0; i < walk.inner; ++i) {
        const int64_t base = outer * walk.size * walk.inner + i;
        if (!fit.add(base + index * walk.inner, base + source * walk.inner)) return std::nullopt;
      }
    }
  }
  if (!fits(tensor, fit, choice_nats)) return std::nullopt;
  return fit;
}

// The golden element that a piece would hold at `local` if dims d and d + 1 were read column by
// column.
size_t read_down_columns(const std::vector<std::vector<int64_t>>& dims, size_t d, size_t local) {
  size_t inner = 1;
  for (size_t i = d + 2; i < dims.size(); ++i) inner *= dims[i].size();
  const size_t rows = dims[d].size(), columns = dims[d + 1].size();
  const size_t block = rows * columns * inner;
  const size_t k = local % block / inner;
  return local / block * block + (k % rows * columns + k / rows) * inner + local % inner;
}

bool has_padding(const Piece& piece) {
  return std::any_of(piece.dims.begin(), piece.dims.end(), [](const std::vector<int64_t>& dim) {
    return std::find(dim.begin(), dim.end(), -1) != dim.end();
  });
}

std::optional<Explained> read_order_of(const std::vector<const Piece*>& pieces, size_t d) {
  Explained sums;
  double size = 0, count = 0;
  for (const Piece* piece : pieces) {
    if (d + 1 >= piece->dims.size() || piece->dims[d].size() < 2 || piece->dims[d + 1].size() < 2 ||
        has_padding(*piece)) {
      return std::nullopt;
    }
    for (size_t local = 0; local < piece->actual.size(); ++local) {
      sums.add(piece->actual[local], piece->golden[local],
               piece->golden[read_down_columns(piece->dims, d, local)], piece->allowance);
      size += piece->golden[local] * piece->golden[local];
      ++count;
    }
  }
  const double allowance = pieces.front()->allowance;
  if (!sums.convinces(allowance, count > 0 ? std::sqrt(size / count) : 0, std::log(4.0))) {
    return std::nullopt;
  }
  return sums;
}

}  // namespace

std::optional<Explanation> explain_shift(const Assembled& tensor) {
  const double choices = std::log(2.0 * kLargestShift * static_cast<double>(tensor.shape.size()));
  std::optional<Explanation> best;
  for (int64_t size = 1; size <= kLargestShift; ++size) {
    for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      if (size >= tensor.shape[dim]) continue;
      const Walk walk = walk_along(tensor.shape, dim);
      for (const int64_t shift : {size, -size}) {
        const std::optional<Fit> fit = shifted_by(tensor, walk, shift, choices);
        if (!fit || (best && fit->sums().share() <= best->explained)) continue;
        best = Explanation{fmt::format("shifted by {} along {}: actual[i] is golden[i {} {}]",
                                       shift, dim_name(tensor, dim), shift > 0 ? "-" : "+", size),
                           "an offset, a mask or a target is off by " + std::to_string(size),
                           fit->sums().share()};
      }
    }
  }
  return best;
}

std::optional<Explanation> explain_transposition(const Assembled& tensor) {
  const size_t dims = tensor.shape.size();
  for (size_t a = 0; a + 1 < dims; ++a) {
    for (size_t b = a + 1; b < dims; ++b) {
      if (tensor.shape[a] != tensor.shape[b] || tensor.shape[a] < 2) continue;
      const int64_t size = tensor.shape[a];
      const int64_t inner_a = walk_along(tensor.shape, a).inner;
      const int64_t inner_b = walk_along(tensor.shape, b).inner;
      Fit fit(tensor, most_left(tensor));
      bool going = true;
      for (int64_t e = 0; going && e < static_cast<int64_t>(tensor.actual.size()); ++e) {
        const int64_t i = e / inner_a % size, j = e / inner_b % size;
        going = fit.add(e, e + (j - i) * inner_a + (i - j) * inner_b);
      }
      if (!going || !fits(tensor, fit, std::log(static_cast<double>(dims * dims)))) continue;
      return Explanation{fmt::format("dims {} and {} are transposed", a, b),
                         "a transpose is missing or done twice", fit.sums().share()};
    }
  }
  return std::nullopt;
}

std::optional<Explanation> explain_read_order(const std::vector<const Piece*>& pieces) {
  if (pieces.empty() || pieces.front()->dims.empty()) return std::nullopt;
  for (size_t d = 0; d + 1 < pieces.front()->dims.size(); ++d) {
    const std::optional<Explained> sums = read_order_of(pieces, d);
    if (!sums) continue;
    const bool tokens = pieces.front()->dims.size() < pieces.front()->global_shape.size();
    const size_t first = tokens ? d + 1 : d;
    return Explanation{
        fmt::format("each rank's part has its memory along dims {} and {} read in the other order",
                    tokens && d == 0 ? "0, 1" : std::to_string(first), first + 1),
        "a strided tensor was taken for a dense one, or a view stands where a transpose belongs",
        sums->share()};
  }
  return std::nullopt;
}

}  // namespace shardproof::sim
