#include "sim/judge/diff/addends.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/count_of.h"
#include "base/digest.h"
#include "sim/case/record/magnitude.h"
#include "sim/judge/diff/tensor_diff.h"

namespace shardproof::sim::judge {
namespace {

struct AddendGroup {
  std::vector<int64_t> peers;  // each of them must hold an addend
  std::vector<ResultRow*> rows;
  std::vector<const Piece*> pieces;
  std::vector<int64_t> unfit;  // peers whose addend is of another form
};

struct TensorAddends {
  std::vector<ResultRow*> rows;
  std::vector<ResultRow*> unfit;
  std::vector<const Piece*> pieces;
};

std::map<GoldenPosition, TensorAddends> addends_by_tensor(std::vector<RankReport>& reports) {
  std::map<GoldenPosition, TensorAddends> tensors;
  for (RankReport& report : reports) {
    for (ResultRow& row : report.rows) {
      if (!row.partial || row.order < 0) continue;
      TensorAddends& tensor = tensors[golden_position(row.step, row.phase, row.order)];
      (row.is_wrong() ? tensor.unfit : tensor.rows).push_back(&row);
    }
    for (const Piece& piece : report.pieces) {
      if (!piece.partial) continue;
      tensors[golden_position(piece.step, piece.phase, piece.order)].pieces.push_back(&piece);
    }
  }
  return tensors;
}

// Groups by the lowest rank of their peers.
std::map<int64_t, AddendGroup> groups_of(const Mesh& mesh, const TensorAddends& tensor) {
  std::map<int64_t, AddendGroup> groups;
  for (ResultRow* row : tensor.rows) {
    if (row->rank >= mesh.world_size()) {
      row->outcome = Outcome::kNotJudged;
      row->reason = fmt::format("rank {} holds an addend and is not a rank of the mesh", row->rank);
      continue;
    }
    const std::vector<int64_t> peers = mesh.peers_along(row->partial_axes, row->rank);
    AddendGroup& group = groups[peers.front()];
    group.peers = peers;
    group.rows.push_back(row);
  }
  for (const ResultRow* row : tensor.unfit) {
    if (row->rank >= mesh.world_size()) continue;
    const auto group = groups.find(mesh.peers_along(row->partial_axes, row->rank).front());
    if (group == groups.end()) continue;
    std::vector<int64_t>& unfit = group->second.unfit;
    if (std::ranges::find(unfit, row->rank) == unfit.end()) unfit.push_back(row->rank);
  }
  for (const Piece* piece : tensor.pieces) {
    if (piece->rank >= mesh.world_size()) continue;
    const auto group = groups.find(mesh.peers_along(piece->partial_axes, piece->rank).front());
    if (group != groups.end()) group->second.pieces.push_back(piece);
  }
  return groups;
}

// The first row whose addend was not sent; null when all were.
const ResultRow* unsent(const AddendGroup& group) {
  for (const ResultRow* row : group.rows) {
    if (row->outcome != Outcome::kAddend) return row;
  }
  return nullptr;
}

void leave_unjudged(const AddendGroup& group, const std::string& reason,
                    Outcome outcome = Outcome::kNotJudged) {
  for (ResultRow* row : group.rows) {
    row->outcome = outcome;
    row->reason = reason;
  }
}

// The elements that one peer holds, over all of its microbatches.
struct HeldElements {
  int64_t count = 0;
  uint64_t hash = 0;
};

std::map<int64_t, HeldElements> elements_by_rank(const AddendGroup& group) {
  std::map<int64_t, HeldElements> elements;
  for (const Piece* piece : group.pieces) {
    HeldElements& held = elements[piece->rank];
    for_each_element(*piece, [&](int64_t offset, size_t) {
      ++held.count;
      held.hash += mix_bits(static_cast<uint64_t>(offset) + 1);
    });
  }
  return elements;
}

// The ranks of the group without an addend.
std::vector<int64_t> silent_peers(const AddendGroup& group) {
  std::vector<int64_t> silent = group.peers;
  std::erase_if(silent, [&](int64_t peer) {
    return std::ranges::any_of(group.rows, [&](const ResultRow* row) { return row->rank == peer; });
  });
  return silent;
}

// The peers that hold fewer elements than the others. When all hold equally many, the peers whose
// elements the fewest peers hold.
std::vector<int64_t> odd_peers(const AddendGroup& group) {
  const std::map<int64_t, HeldElements> elements = elements_by_rank(group);
  int64_t most = 0;
  std::map<uint64_t, size_t> holders;
  for (const auto& [rank, held] : elements) {
    most = std::max(most, held.count);
    ++holders[held.hash];
  }
  std::vector<int64_t> fewer, lonely;
  size_t fewest = group.peers.size();
  for (const auto& [hash, count] : holders) fewest = std::min(fewest, count);
  for (const auto& [rank, held] : elements) {
    if (held.count < most) fewer.push_back(rank);
    if (holders.at(held.hash) == fewest) lonely.push_back(rank);
  }
  return fewer.empty() ? lonely : fewer;
}

// Adds to `found` the ranks without an addend, or those whose addends do not fit the others.
// Returns whether there are any.
bool lacks_addend(const AddendGroup& group, bool held_equally_often, WrongAddends& found) {
  std::vector<int64_t> lacking = silent_peers(group);
  const bool silent = !lacking.empty();
  if (!silent && !held_equally_often) lacking = odd_peers(group);
  if (lacking.empty()) return false;
  if (found.lack.empty()) {
    found.lack = fmt::format("{} {} {}, and the other peers among {} do", ranks_text(lacking),
                             lacking.size() > 1 ? "hold" : "holds",
                             silent ? "none of it" : "not the elements that belong there",
                             ranks_text(group.peers));
  }
  found.lacking.insert(found.lacking.end(), lacking.begin(), lacking.end());
  return true;
}

struct Sum {
  Piece piece;
  bool held_equally_often = true;  // as many ranks hold each element
};

Sum summed(const AddendGroup& group) {
  const Piece& first = *group.pieces.front();
  size_t size = 1;
  for (const int64_t length : first.global_shape) size *= static_cast<size_t>(length);
  std::vector<double> actual(size, 0), golden(size, 0);
  std::vector<int32_t> holders(size, 0);
  for (const Piece* piece : group.pieces) {
    for_each_element(*piece, [&](int64_t offset, size_t local) {
      const auto at = static_cast<size_t>(offset);
      actual[at] += piece->actual[local];
      golden[at] = piece->golden[local];
      ++holders[at];
    });
  }
  Piece out{.kind = first.kind,
            .name = first.name,
            .phase = first.phase,
            .step = first.step,
            .microbatch = first.microbatch,
            .rank = group.peers.front(),
            .order = first.order,
            .partial = true,
            .partial_axes = first.partial_axes,
            .global_shape = first.global_shape,
            .dims = {{}},
            .strides = {1}};
  out.allowance = first.allowance;
  out.allowance_of_few = first.allowance_of_few;
  out.drawn = first.drawn;
  std::set<int32_t> counts;
  for (size_t at = 0; at < size; ++at) {
    if (holders[at] == 0) continue;
    counts.insert(holders[at]);
    out.dims[0].push_back(static_cast<int64_t>(at));
    out.actual.push_back(actual[at]);
    out.golden.push_back(golden[at]);
  }
  return {std::move(out), counts.size() <= 1};
}

ResultRow judged_sum(const ResultRow& like, const Piece& sum) {
  const auto count = static_cast<int64_t>(sum.actual.size());
  const TensorView actual = TensorView::of(sum.actual, {count});
  GoldenTensor golden;
  golden.value = TensorView::of(sum.golden, {count});
  golden.scale = largest_magnitude(golden.value);
  IndexPlan plan;
  plan.global_shape = plan.local_shape = {count};
  plan.count = count;
  plan.rows = {0};
  plan.row_length = count;
  plan.runs = {{0, 0, count}};
  ResultRow row = like;
  row.rank = sum.rank;
  row.count = row.judged = count;
  row.replicas = std::vector<int64_t>{sum.rank};
  if (sum.drawn.empty()) row.global_shape = sum.global_shape;
  if (sum.allowance_of_few >= 0) {
    const DiffResult by_few = diff({actual, golden, plan, 1, sum.allowance_of_few});
    if (by_few.bad_count == 0) {
      row.reason.clear();
      take_result(by_few, plan, row);
      row.rounding_only = false;
      return row;
    }
  }
  take_result(diff({actual, golden, plan, 1, sum.allowance}), plan, row);
  row.rounding_only = like.rounding_only && row.is_wrong();
  if (!row.is_wrong()) return row;
  const auto worst = static_cast<size_t>(row.worst_global_index[0]);
  row.worst_local_index.clear();
  row.worst_global_index = unravel(sum.dims[0][worst], sum.global_shape);
  if (!sum.drawn.empty()) {
    row.worst_global_index[0] = sum.drawn[static_cast<size_t>(row.worst_global_index[0])];
  }
  return row;
}

void settle_rows(const AddendGroup& group, const ResultRow& sum) {
  for (ResultRow* row : group.rows) {
    row->outcome = sum.outcome;
    row->reason = sum.reason;
    row->judged = sum.outcome == Outcome::kMatch || sum.is_wrong() ? row->count : 0;
    row->worst_ratio = sum.worst_ratio;
    row->worst_error = sum.worst_error;
    row->allowance = sum.allowance;
    row->rounding_only = sum.rounding_only;
    row->bad_count = sum.bad_count;
    row->golden_value = sum.golden_value;
    row->actual_value = sum.actual_value;
    row->worst_global_index = sum.worst_global_index;
  }
}

void settle_group(const AddendGroup& group, WrongAddends& found) {
  if (const ResultRow* row = unsent(group)) {
    // No rule decides where correct runs of one device overflow; such addends are not sent.
    const bool unresolved = row->outcome == Outcome::kUnresolved;
    return leave_unjudged(group, std::string(row->reason),
                          unresolved ? Outcome::kUnresolved : Outcome::kNotJudged);
  }
  if (group.pieces.size() != group.rows.size()) {
    return leave_unjudged(group,
                          fmt::format("{} of its {} addends came without their values",
                                      group.rows.size() - group.pieces.size(), group.rows.size()));
  }
  if (!group.unfit.empty()) {
    return leave_unjudged(
        group, fmt::format("the {} of {} cannot be added to it",
                           group.unfit.size() > 1 ? "addends" : "addend", ranks_text(group.unfit)));
  }
  Sum sum = summed(group);
  if (lacks_addend(group, sum.held_equally_often, found)) return leave_unjudged(group, found.lack);
  ResultRow row = judged_sum(*group.rows.front(), sum.piece);
  settle_rows(group, row);
  if (!row.is_wrong()) return;
  found.wrong.push_back(std::move(row));
  found.sums.push_back(std::move(sum.piece));
}

}  // namespace

std::map<GoldenPosition, WrongAddends> settle_addends(const StepMeshes& meshes,
                                                      std::vector<RankReport>& reports) {
  std::map<GoldenPosition, WrongAddends> wrong;
  for (const auto& [place, tensor] : addends_by_tensor(reports)) {
    WrongAddends found;
    for (const auto& [first, group] : groups_of(meshes.at(std::get<0>(place)), tensor)) {
      settle_group(group, found);
    }
    if (!found.wrong.empty() || !found.lacking.empty()) wrong.emplace(place, std::move(found));
  }
  return wrong;
}

}  // namespace shardproof::sim::judge
