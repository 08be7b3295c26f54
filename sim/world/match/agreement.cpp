// The rules of each op.
#include "sim/world/match/agreement.h"

namespace shardproof::sim::world {
namespace {

std::string against(const std::string& what, const std::string& a, const std::string& b) {
  return what + " " + a + " against " + b;
}

std::optional<std::string> trailing_shapes(const Call& a, const Call& b, size_t free_dim) {
  bool same = a.shape.size() == b.shape.size();
  for (size_t d = 0; same && d < a.shape.size(); ++d) {
    same = d == free_dim || a.shape[d] == b.shape[d];
  }
  if (same) return std::nullopt;
  return against("shape", list_text(a.shape), list_text(b.shape));
}

std::optional<std::string> exact_shapes(const Call& a, const Call& b) {
  return trailing_shapes(a, b, static_cast<size_t>(-1));
}

// Compares sent[to] of rank `from` with expected[from] of rank `to`.
std::optional<std::string> one_way(const Call& from, const Call& to) {
  const auto to_index = static_cast<size_t>(to.group_rank);
  const auto from_index = static_cast<size_t>(from.group_rank);
  if (from.split_sizes.size() <= to_index || to.output_sizes.size() <= from_index) {
    return std::nullopt;
  }
  const int64_t sent = from.split_sizes[to_index];
  const int64_t expected = to.output_sizes[from_index];
  if (sent == expected) return std::nullopt;
  return "rank " + std::to_string(from.rank) + " sends " + std::to_string(sent) + " rows to rank " +
         std::to_string(to.rank) + ", which expects " + std::to_string(expected);
}

std::optional<std::string> rooted(const Call& root, const Call& member) {
  const auto index = static_cast<size_t>(member.group_rank);
  if (root.split_sizes.size() <= index || member.shape.empty()) return std::nullopt;
  if (root.split_sizes[index] == member.shape[0]) return std::nullopt;
  return "root rank " + std::to_string(root.rank) + " has a part of " +
         std::to_string(root.split_sizes[index]) + " rows for rank " + std::to_string(member.rank) +
         ", which has " + std::to_string(member.shape[0]);
}

std::optional<std::string> shapes_and_splits(const Call& a, const Call& b) {
  if (a.op == Op::kAllGather) {
    if (a.split_sizes != b.split_sizes) {
      return against("sizes", list_text(a.split_sizes), list_text(b.split_sizes));
    }
    if (a.split_sizes.empty()) return exact_shapes(a, b);
    return trailing_shapes(a, b, static_cast<size_t>(a.dim));
  }
  if (a.op == Op::kAllToAll) {
    if (auto found = trailing_shapes(a, b, 0)) return found;
    if (auto found = one_way(a, b)) return found;
    return one_way(b, a);
  }
  if (a.op == Op::kGather || a.op == Op::kScatter) {
    if (auto found = trailing_shapes(a, b, 0)) return found;
    if (a.group_rank == a.root) return rooted(a, b);
    return b.group_rank == b.root ? rooted(b, a) : std::nullopt;
  }
  if (auto found = exact_shapes(a, b)) return found;
  if (a.split_sizes == b.split_sizes) return std::nullopt;
  return against("sizes", list_text(a.split_sizes), list_text(b.split_sizes));
}

}  // namespace

std::optional<std::string> difference(const Call& a, const Call& b) {
  const bool point_to_point = is_message(a.op) && is_message(b.op);
  if (!point_to_point) {
    if (a.op != b.op) return against("op", op_text(a), op_text(b));
    if (a.reduce != b.reduce) return against("reduce op", reduce_text(a), reduce_text(b));
    if (a.root != b.root) {
      return against("root", std::to_string(a.root), std::to_string(b.root));
    }
    if (a.dim != b.dim) return against("dim", std::to_string(a.dim), std::to_string(b.dim));
  }
  if (a.dtype != b.dtype) return against("dtype", a.dtype, b.dtype);
  if (auto found = point_to_point ? exact_shapes(a, b) : shapes_and_splits(a, b)) return found;
  if (!point_to_point && a.label != b.label) {
    return against("label", "'" + a.label + "'", "'" + b.label + "'");
  }
  return std::nullopt;
}

bool is_pairwise(const Call& line) {
  return line.op == Op::kAllToAll || line.op == Op::kGather || line.op == Op::kScatter;
}

std::string describe_disagreement(const Call& a, const Call& b, const std::string& what) {
  return "ranks " + std::to_string(a.rank) + " and " + std::to_string(b.rank) +
         " disagree on call " + std::to_string(a.sequence) + " of " + a.group + ": " + what +
         ". Rank " + std::to_string(a.rank) + ": " + describe(a) + ". Rank " +
         std::to_string(b.rank) + ": " + describe(b);
}

}  // namespace shardproof::sim::world
