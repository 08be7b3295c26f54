#include "sim/compare/addends.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "sim/compare/index_plan.h"

namespace shardproof::sim {
namespace {

struct Sum {
  double actual = 0, golden = 0;
};

struct AddendGroup {
  std::set<int64_t> ranks;
  std::vector<const ResultRow*> rows;
  std::vector<const Piece*> pieces;
};

// One group of peers along the partial axes: the piece that is their sum.
Piece summed(const AddendGroup& group) {
  std::map<int64_t, Sum> sums;
  for (const Piece* piece : group.pieces) {
    for_each_element(*piece, [&](int64_t offset, size_t local) {
      Sum& sum = sums[offset];
      sum.actual += piece->actual[local];
      sum.golden = piece->golden[local];
    });
  }
  const Piece& first = *group.pieces.front();
  Piece out{.name = first.name,
            .phase = first.phase,
            .step = first.step,
            .microbatch = first.microbatch,
            .rank = *group.ranks.begin(),
            .order = first.order,
            .partial = true,
            .partial_axes = first.partial_axes,
            .global_shape = first.global_shape,
            .dims = {{}},
            .strides = {1}};
  out.allowance = first.allowance;
  for (const auto& [offset, sum] : sums) {
    out.dims[0].push_back(offset);
    out.actual.push_back(sum.actual);
    out.golden.push_back(sum.golden);
  }
  return out;
}

ResultRow judged_sum(const ResultRow& like, const Piece& sum) {
  ResultRow row = like;
  row.rank = sum.rank;
  row.count = static_cast<int64_t>(sum.actual.size());
  row.allowance = sum.allowance;
  row.global_shape = sum.global_shape;
  row.replicas = {sum.rank};
  double golden_square = 0, product = 0, actual_square = 0;
  for (size_t i = 0; i < sum.actual.size(); ++i) {
    const double error = std::fabs(sum.actual[i] - sum.golden[i]);
    golden_square += sum.golden[i] * sum.golden[i];
    product += sum.golden[i] * sum.actual[i];
    actual_square += sum.actual[i] * sum.actual[i];
    const bool equal =
        sum.actual[i] == sum.golden[i] || (std::isnan(sum.actual[i]) && std::isnan(sum.golden[i]));
    if (error <= sum.allowance || equal) continue;
    const double ratio = std::isnan(error) || sum.allowance == 0
                             ? std::numeric_limits<double>::infinity()
                             : error / sum.allowance;
    if (++row.bad_count > 1 && ratio <= row.worst_ratio) continue;
    row.worst_ratio = ratio;
    row.worst_error = error;
    row.golden_value = sum.golden[i];
    row.actual_value = sum.actual[i];
    row.worst_global_index = unravel(sum.dims[0][i], sum.global_shape);
  }
  row.ok = row.bad_count == 0;
  if (golden_square > 0) row.factor = product / golden_square;
  const double left =
      actual_square - 2 * row.factor * product + row.factor * row.factor * golden_square;
  row.factor_residual = actual_square > 0 ? std::sqrt(std::fmax(left, 0) / actual_square) : 0;
  return row;
}

}  // namespace

SummedAddends sum_addends(const Mesh& mesh, const std::vector<const ResultRow*>& rows,
                          const std::vector<const Piece*>& pieces) {
  std::map<int64_t, AddendGroup> groups;  // by lowest rank of the peers
  const auto leader = [&](const std::vector<std::string>& axes, int64_t rank) {
    return mesh.peers_along(axes, rank).front();
  };
  for (const ResultRow* row : rows) {
    AddendGroup& group = groups[leader(row->partial_axes, row->rank)];
    group.rows.push_back(row);
    group.ranks.insert(row->rank);
  }
  for (const Piece* piece : pieces) {
    groups[leader(piece->partial_axes, piece->rank)].pieces.push_back(piece);
  }
  SummedAddends out;
  for (const auto& [first_rank, group] : groups) {
    if (group.rows.empty() || group.pieces.size() != group.rows.size()) continue;
    Piece sum = summed(group);
    out.count += static_cast<int64_t>(sum.actual.size());
    ResultRow row = judged_sum(*group.rows.front(), sum);
    if (row.ok) continue;
    out.wrong.push_back(std::move(row));
    out.sums.push_back(std::move(sum));
  }
  return out;
}

}  // namespace shardproof::sim
