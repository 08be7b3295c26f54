// The golden's chunks in another order.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

constexpr int64_t kMostChunks = 128;
constexpr double kOfZeros = 1 - 1e-9;  // the share of a chunk of zeros in another's place
constexpr int64_t kFewChunks = 8;      // with more chunks a rotation is a shift

// Chunks of equal length along a dim; the last ones may be short or empty.
struct Chunks {
  Walk walk;
  int64_t count, length;

  int64_t begin(int64_t chunk) const { return std::min(walk.size, chunk * length); }
  int64_t size(int64_t chunk) const { return begin(chunk + 1) - begin(chunk); }
};

template <class Use>
void for_each_in(const Chunks& chunks, int64_t chunk, const Use& use) {
  for (int64_t outer = 0; outer < chunks.walk.outer; ++outer) {
    const int64_t start = (outer * chunks.walk.size + chunks.begin(chunk)) * chunks.walk.inner;
    for (int64_t i = 0; i < chunks.size(chunk) * chunks.walk.inner; ++i) {
      if (!use(start + i)) return;
    }
  }
}

double difference_in(const Assembled& tensor, const Chunks& chunks, int64_t chunk) {
  double sum = 0;
  bool wrong = false;
  for_each_in(chunks, chunk, [&](int64_t element) {
    const auto e = static_cast<size_t>(element);
    if (!tensor.known[e] || tensor.is_dropped(e)) return true;
    wrong = wrong || tensor.is_wrong(e);
    sum += (tensor.actual[e] - tensor.golden[e]) * (tensor.actual[e] - tensor.golden[e]);
    return true;
  });
  return wrong ? sum : 0;
}

bool are_zeros(const Assembled& tensor, const Chunks& chunks, int64_t chunk) {
  bool all = true;
  for_each_in(chunks, chunk, [&](int64_t element) {
    const auto e = static_cast<size_t>(element);
    return all = all && (!tensor.known[e] || tensor.actual[e] == 0);
  });
  return all;
}

std::optional<Explained> taken_from(const Assembled& tensor, const Chunks& chunks, int64_t chunk,
                                    int64_t source, double difference) {
  Fit fit(tensor, difference);
  const int64_t offset = (chunks.begin(source) - chunks.begin(chunk)) * chunks.walk.inner;
  const int64_t row = chunks.walk.size * chunks.walk.inner;
  const int64_t end = chunks.begin(source + 1) * chunks.walk.inner;
  bool going = true;
  for_each_in(chunks, chunk, [&](int64_t element) {
    if (element % row + offset >= end) return true;  // the source is shorter
    return going = fit.add(element, element + offset);
  });
  const Explained& sums = fit.sums();
  if (!going || sums.evidence == 0 || sums.share() < kLeastExplained) return std::nullopt;
  // Zeros are nearly any small chunk.
  if (sums.share() < kOfZeros && are_zeros(tensor, chunks, chunk)) return std::nullopt;
  return sums;
}

struct Order {
  std::vector<int64_t> sources;
  Explained sums;
  int64_t moved = 0;
};

// The source of each chunk of the actual tensor, if every chunk has one.
std::optional<Order> order_of(const Assembled& tensor, const Chunks& chunks) {
  Order order;
  for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
    order.sources.push_back(chunk);
    const double difference = difference_in(tensor, chunks, chunk);
    if (difference == 0) continue;
    std::optional<Explained> best;
    for (int64_t source = 0; source < chunks.count; ++source) {
      if (source == chunk) continue;
      const auto sums = taken_from(tensor, chunks, chunk, source, difference);
      if (!sums || (best && sums->share() <= best->share())) continue;
      best = sums;
      order.sources.back() = source;
    }
    if (!best) return std::nullopt;
    order.sums.add(*best);
    ++order.moved;
  }
  return order;
}

bool all_different(const std::vector<int64_t>& order) {
  return std::set<int64_t>(order.begin(), order.end()).size() == order.size();
}

std::string order_text(const std::vector<int64_t>& order) {
  const size_t shown = std::min<size_t>(order.size(), 16);
  return fmt::format("{}{}", fmt::join(order.begin(), order.begin() + shown, " "),
                     shown < order.size() ? " .." : "");
}

std::string axes_of_size(const Mesh& mesh, int64_t size) {
  std::string axes;
  for (const std::string& axis : mesh.names()) {
    if (mesh.size(axis) == size) axes += (axes.empty() ? "" : " or ") + axis;
  }
  return axes;
}

bool is_inverse(const std::vector<int64_t>& order, const std::vector<int64_t>& other) {
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[static_cast<size_t>(other[i])] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// The chunks in the order in which ranks hold them, two each.
using ChunksOfRanks = std::vector<int64_t>;

// 0, 2n-1, 1, 2n-2, ..
ChunksOfRanks zigzag_of_ranks(int64_t ranks) {
  ChunksOfRanks order;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    order.insert(order.end(), {rank, 2 * ranks - 1 - rank});
  }
  return order;
}

// 0, n, 2n, .., 1, n+1, 2n+1, ..: each of `ranks` ranks has its part of each of `parts` parts.
std::vector<int64_t> parts_cut_by_rank(int64_t parts, int64_t ranks) {
  std::vector<int64_t> order;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (int64_t part = 0; part < parts; ++part) order.push_back(part * ranks + rank);
  }
  return order;
}

// Whether ranks took the chunks of one layout to the positions of another, and one of the two is
// zigzag.
bool confuses_zigzag(const std::vector<int64_t>& order) {
  const int64_t ranks = std::ssize(order) / 2;
  const ChunksOfRanks zigzag = zigzag_of_ranks(ranks);
  ChunksOfRanks halves_swapped = zigzag, contiguous = zigzag;
  for (size_t i = 0; i + 1 < zigzag.size(); i += 2) {
    std::swap(halves_swapped[i], halves_swapped[i + 1]);
  }
  std::iota(contiguous.begin(), contiguous.end(), 0);
  const std::vector<ChunksOfRanks> layouts = {zigzag, halves_swapped, contiguous,
                                              parts_cut_by_rank(2, ranks)};
  constexpr size_t kZigzags = 2;
  for (size_t from = 0; from < layouts.size(); ++from) {
    for (size_t to = 0; to < layouts.size(); ++to) {
      if (from >= kZigzags && to >= kZigzags) continue;
      bool fits = true;
      for (size_t i = 0; i < order.size(); ++i) {
        fits = fits && order[static_cast<size_t>(layouts[to][i])] == layouts[from][i];
      }
      if (fits) return true;
    }
  }
  return false;
}

// "the two fused parts, such as gate and up, .." for chunks 0, n, 1, n+1, .. of n ranks, or for the
// inverse; "" for other orders. An axis of n ranks is preferred.
std::string fused_parts(const Mesh& mesh, const std::vector<int64_t>& order) {
  const int64_t chunks = std::ssize(order);
  std::string text;
  for (int64_t parts = 2; parts <= chunks / 2; ++parts) {
    const int64_t ranks = chunks / parts;
    const std::string axes = axes_of_size(mesh, ranks);
    if (chunks % parts != 0 || axes.empty()) continue;
    const std::string which = parts == 2   ? "two fused halves, such as gate and up,"
                              : parts == 3 ? "three fused parts, such as q, k and v,"
                                           : fmt::format("{} fused parts", parts);
    const std::vector<int64_t> by_rank = parts_cut_by_rank(parts, ranks);
    if (order == by_rank) {
      return fmt::format(
          "{} are cut by rank of {}: each rank's share of one stands beside its "
          "share of the next, where one whole part belongs after the other",
          which, axes);
    }
    if (is_inverse(order, by_rank)) {
      text = fmt::format(
          "{} stand whole one after the other, where each rank's share of {} of one "
          "belongs beside its share of the next",
          which, axes);
    }
  }
  return text;
}

// Of the rows of a batch, which have no fused parts: "" for other orders than of rows that were
// dealt to the ranks of an axis one by one, or the inverse.
std::string dealt_in_turn(const Mesh& mesh, const std::vector<int64_t>& order) {
  const int64_t chunks = std::ssize(order);
  for (int64_t ranks = 2; ranks <= chunks / 2; ++ranks) {
    if (chunks % ranks != 0) continue;
    const std::vector<int64_t> in_turn = parts_cut_by_rank(chunks / ranks, ranks);
    const std::string axes = axes_of_size(mesh, ranks);
    const std::string whom = axes.empty() ? fmt::format("{} parts", ranks) : "the ranks of " + axes;
    if (order == in_turn) {
      return fmt::format(
          "rows or positions were dealt to {} in turn, as a sampler does, where those that follow "
          "each other belong to one rank",
          whom);
    }
    if (is_inverse(order, in_turn)) {
      return fmt::format("rows that were dealt to {} in turn were put together part by part", whom);
    }
  }
  return "";
}

// Whether ranks of some axis hold this number of chunks, which may then have unequal lengths.
bool is_of_mesh(int64_t count, const Mesh& mesh) {
  const std::vector<std::string> names = mesh.names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& axis) {
    return count == mesh.size(axis) || count == 2 * mesh.size(axis);
  });
}

// Of a tensor that has gate and up in common: "" where they are neither exchanged nor in turn.
std::string gate_and_up(const std::vector<int64_t>& order) {
  const int64_t chunks = std::ssize(order);
  if (chunks % 2 != 0) return "";
  bool exchanged = true;
  for (int64_t i = 0; i < chunks; ++i) {
    exchanged = exchanged && order[static_cast<size_t>(i)] == (i ^ 1);
  }
  if (exchanged) {
    return chunks == 2 ? "gate and up are exchanged"
                       : "gate and up are exchanged, whose parts stand in turn";
  }
  const std::vector<int64_t> in_turn = parts_cut_by_rank(2, chunks / 2);
  if (order == in_turn) return "gate and up stand in turn, where one belongs after the other";
  if (is_inverse(order, in_turn)) {
    return "gate and up stand one after the other, where their parts belong in turn";
  }
  return "";
}

// Names an order of chunks if the mesh has a name for it; `order[i]` is the golden chunk at i. Only
// what may have positions is cut in zigzag.
std::string likely_chunk_order(const Assembled& tensor, const Mesh& mesh, size_t dim,
                               const std::vector<int64_t>& order) {
  const bool may_be_zigzag = tensor.may_have_positions;
  const bool has_both = tensor.has_experts() && tensor.name.find("gate_up") != tensor.name.npos;
  if (const std::string both = has_both ? gate_and_up(order) : ""; !both.empty()) return both;
  const auto chunks = std::ssize(order);
  const std::string axes = axes_of_size(mesh, chunks);
  const std::string halves = chunks % 2 == 0 ? axes_of_size(mesh, chunks / 2) : "";
  if (!all_different(order)) {
    return axes.empty()
               ? "one part stands in the place of others"
               : fmt::format("the part of one rank of {} stands in the place of others", axes);
  }
  const bool are_rows = tensor.may_have_positions && dim == 0;
  const std::string fused = are_rows ? "" : fused_parts(mesh, order);
  if (!fused.empty()) return fused;
  if (!halves.empty() && may_be_zigzag) {
    const std::vector<int64_t> zigzag = zigzag_of_ranks(chunks / 2);
    if (chunks > 2 && order == zigzag) {
      return fmt::format("the zigzag chunks of {} were put together in the order of the ranks",
                         halves);
    }
    if (chunks > 2 && is_inverse(order, zigzag)) {
      return fmt::format("what lay in order was put into the zigzag order of {} once too often",
                         halves);
    }
    if (std::is_sorted(order.rbegin(), order.rend())) {
      return fmt::format("the two zigzag halves of each rank of {} are swapped", halves);
    }
  }
  const std::string dealt = are_rows ? dealt_in_turn(mesh, order) : "";
  if (!dealt.empty()) return dealt;
  if (!axes.empty())
    return fmt::format("the shards of {} were put together in a wrong order", axes);
  if (!halves.empty() && may_be_zigzag && confuses_zigzag(order)) {
    return fmt::format("zigzag chunks ({} = 2 x the size of {}) were confused", chunks, halves);
  }
  return "the parts were put together in a wrong order";
}

bool is_rotation(const std::vector<int64_t>& order) {
  const auto follows = [&](int64_t a, int64_t b) { return b == (a + 1) % std::ssize(order); };
  return std::adjacent_find(order.begin(), order.end(), std::not_fn(follows)) == order.end();
}

}  // namespace

std::optional<Proposal> propose_chunk_order(const Assembled& tensor, const Mesh& mesh) {
  for (int64_t count = 2; count <= kMostChunks; ++count) {
    for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      const int64_t size = tensor.shape[dim];
      if (dim == 0 && tensor.has_experts()) continue;  // propose_other_experts
      if (dim == 2 && is_route_ids(tensor.name)) continue;
      if (size < count || (size % count != 0 && !is_of_mesh(count, mesh))) continue;
      const Chunks chunks{walk_along(tensor.shape, dim), count, (size + count - 1) / count};
      const std::optional<Order> order = order_of(tensor, chunks);
      if (!order || order->moved == 0) continue;
      if (count > kFewChunks && is_rotation(order->sources)) continue;
      const double choices =
          static_cast<double>(order->moved) * std::log(static_cast<double>(count));
      if (!tensor.is_convinced_by(order->sums, choices)) continue;
      std::vector<double> parameters(order->sources.begin(), order->sources.end());
      parameters.push_back(static_cast<double>(dim));
      return Proposal{
          .pattern = fmt::format("the {} chunks along {} are the golden's in the order {}", count,
                                 dim_name(tensor, dim), order_text(order->sources)),
          .likely = likely_chunk_order(tensor, mesh, dim, order->sources),
          .description = choices,
          .parameters = parameters}
          .explaining(order->sums, tensor.wrong);
    }
  }
  return std::nullopt;
}

}  // namespace shardproof::sim::judge
