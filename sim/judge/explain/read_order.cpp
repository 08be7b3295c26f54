// Memory that was read in a wrong order.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {

namespace {

constexpr double kChoice = 1.4;  // for the choice of two neighboring dims

// The golden element at `local` of a piece if dims d and d + 1 were read in column-major order.
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

std::optional<Explained> read_order_of(const Pieces& pieces, size_t d, double golden_size) {
  Explained sums;
  for (const Piece* piece : pieces) {
    if (d + 1 >= piece->dims.size() || piece->dims[d].size() < 2 || piece->dims[d + 1].size() < 2 ||
        has_padding(*piece)) {
      return std::nullopt;
    }
    for (size_t local = 0; local < piece->actual.size(); ++local) {
      sums.add(piece->actual[local], piece->golden[local],
               piece->golden[read_down_columns(piece->dims, d, local)], piece->allowance);
    }
  }
  if (!sums.convinces(pieces.front()->allowance, golden_size, kChoice)) return std::nullopt;
  return sums;
}

}  // namespace

std::optional<Proposal> propose_read_order(const Difference& difference) {
  const Pieces& pieces = difference.symptoms.pieces;
  if (pieces.empty()) return std::nullopt;
  const Piece& first = *pieces.front();
  for (size_t d = 0; d + 1 < first.dims.size(); ++d) {
    const std::optional<Explained> sums = read_order_of(pieces, d, difference.golden_size);
    if (!sums) continue;
    const bool tokens = first.dims.size() < first.global_shape.size();
    const size_t dim = tokens ? d + 1 : d;
    return Proposal{
        .pattern = fmt::format(
            "each rank's part has its memory along dims {} and {} read in the other order",
            tokens && d == 0 ? "0, 1" : std::to_string(dim), dim + 1),
        .likely =
            "a strided tensor was taken for a dense one, or a view stands where a transpose "
            "belongs",
        .description = kChoice}
        .explaining(*sums, sums->wrong);
  }
  return std::nullopt;
}

std::optional<Proposal> propose_transposition(const Assembled& tensor, const Mesh& /*mesh*/) {
  const size_t dims = tensor.shape.size();
  const double choices = std::log(static_cast<double>(dims * dims));
  for (size_t a = 0; a + 1 < dims; ++a) {
    for (size_t b = a + 1; b < dims; ++b) {
      if (tensor.shape[a] != tensor.shape[b] || tensor.shape[a] < 2) continue;
      const int64_t size = tensor.shape[a];
      const int64_t inner_a = walk_along(tensor.shape, a).inner;
      const int64_t inner_b = walk_along(tensor.shape, b).inner;
      Fit fit(tensor);
      bool going = true;
      for (int64_t e = 0; going && e < static_cast<int64_t>(tensor.actual.size()); ++e) {
        const int64_t i = e / inner_a % size, j = e / inner_b % size;
        going = fit.add(e, e + (j - i) * inner_a + (i - j) * inner_b);
      }
      if (!going || !fit.explains_tensor(choices)) continue;
      return Proposal{.pattern = fmt::format("dims {} and {} are transposed", a, b),
                      .likely = "a transpose is missing or done twice",
                      .description = choices,
                      .parameters = {static_cast<double>(a), static_cast<double>(b)}}
          .explaining(fit.sums(), tensor.wrong);
    }
  }
  return std::nullopt;
}

}  // namespace shardproof::sim::judge
