// The same difference on every row: a vector was added once too often, or left out.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "sim/judge/diff/addends.h"
#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {

std::optional<Proposal> propose_offset(const Assembled& tensor, const Mesh& /*mesh*/) {
  if (tensor.shape.size() < 2 || tensor.shape.back() < 2) return std::nullopt;
  const auto columns = static_cast<size_t>(tensor.shape.back());
  const auto [offset, rows] = vector_beside(tensor, 1);
  if (offset.empty()) return std::nullopt;
  const Explained sums = explained_by(tensor, 1, offset);
  const double choices = 30 * static_cast<double>(columns);  // a free number for each column
  const double size =
      std::sqrt(tensor.difference / static_cast<double>(rows) / static_cast<double>(columns));
  if (!sums.convinces(tensor.allowance, size, choices)) return std::nullopt;
  return Proposal{
      .pattern =
          fmt::format("the difference is one vector of {}, the same on all {} rows", columns, rows),
      .likely = "a bias or another constant vector is added once too often, or left out",
      .description = choices,
      .parameters = offset}
      .explaining(sums, tensor.wrong);
}

constexpr size_t kFewestForConstant = 8;  // elements, and different golden values

namespace {

// The axes over which the sum of all copies is the golden, because of each group of copies one is
// right and the others, which are wrong, are 0: "dp x tp". Else "".
std::string axes_of_one_addend(const Difference& difference) {
  const Symptoms& symptoms = difference.symptoms;
  for (const ResultRow* wrong : difference.wrong) {
    int64_t right = 0;
    for (const ResultRow* row : symptoms.rows) {
      const bool is_copy = row->microbatch == wrong->microbatch && row->tokens == wrong->tokens &&
                           wrong->replicas.contains(row->rank);
      right += is_copy && !row->is_wrong();
    }
    if (right != 1 || wrong->partial) return "";
  }
  for (const std::vector<std::string>& axes : sets_of_axes(symptoms.mesh)) {
    const bool are_peers = std::ranges::all_of(difference.wrong, [&](const ResultRow* row) {
      return row->rank < symptoms.mesh.world_size() &&
             symptoms.mesh.peers_along(axes, row->rank) == row->replicas.ranks();
    });
    if (are_peers) return fmt::format("{}", fmt::join(axes, " x "));
  }
  return "";
}

}  // namespace

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
    const std::string unfilled = "it was never filled, or a gradient was cut off";
    const std::string axes = axes_of_one_addend(difference);
    if (axes.empty()) return Proposal{.pattern = "every element is 0", .likely = unfilled};
    return Proposal{
        .pattern = "every element is 0",
        .detail = fmt::format("; the sum of the ranks' values over {} is the golden", axes),
        .likely = fmt::format("the sum over {} is missing, to which one rank adds all; or {}", axes,
                              unfilled)};
  }
  if (count < kFewestForConstant || golden.size() < kFewestForConstant) return std::nullopt;
  return Proposal{.pattern = fmt::format("every element is {:.6g}", value),
                  .likely = "it was never filled, and is what it was made with",
                  .description = kFreeNumber};
}

}  // namespace shardproof::sim::judge
