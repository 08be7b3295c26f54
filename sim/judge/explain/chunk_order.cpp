#include "sim/judge/explain/chunk_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace shardproof::sim {
namespace {

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

std::optional<Explained> taken_from(const Assembled& tensor, const Chunks& chunks, int64_t chunk,
                                    int64_t source, double difference) {
  Fit fit(tensor, (1 - kLeastExplained) * difference);
  const int64_t offset = (chunks.begin(source) - chunks.begin(chunk)) * chunks.walk.inner;
  const int64_t row = chunks.walk.size * chunks.walk.inner;
  const int64_t end = chunks.begin(source + 1) * chunks.walk.inner;
  bool going = true;
  for_each_in(chunks, chunk, [&](int64_t element) {
    if (element % row + offset >= end) return true;  // the source is the shorter one
    return going = fit.add(element, element + offset);
  });
  const Explained& sums = fit.sums();
  if (!going || sums.evidence == 0 || sums.share() < kLeastExplained) return std::nullopt;
  return sums;
}

struct Order {
  std::vector<int64_t> sources;
  Explained sums;
  int64_t moved = 0;
};

// Where each chunk of the actual tensor comes from, if all come from somewhere.
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
  std::string text;
  for (size_t i = 0; i < order.size() && i < 16; ++i) {
    text += (i > 0 ? " " : "") + std::to_string(order[i]);
  }
  return order.size() > 16 ? text + " .." : text;
}

std::string axes_of_size(const Mesh& mesh, int64_t size) {
  std::string axes;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size > 1 && axis.size == size) axes += (axes.empty() ? "" : " or ") + axis.name;
  }
  return axes;
}

// Chunks as ranks hold them one after another: 0, 2n-1, 1, 2n-2, ..
std::vector<int64_t> zigzag_of_ranks(int64_t ranks) {
  std::vector<int64_t> order;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    order.insert(order.end(), {rank, 2 * ranks - 1 - rank});
  }
  return order;
}

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> out(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    out[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return out;
}

std::vector<int64_t> mesh_counts(const Mesh& mesh) {
  std::vector<int64_t> counts;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size > 1) counts.insert(counts.end(), {axis.size, 2 * axis.size});
  }
  return counts;
}

}  // namespace

std::string likely_chunk_order(const Mesh& mesh, const std::vector<int64_t>& order) {
  const auto chunks = static_cast<int64_t>(order.size());
  const std::string halves = chunks % 2 == 0 ? axes_of_size(mesh, chunks / 2) : "";
  if (!all_different(order)) {
    const std::string axes = axes_of_size(mesh, chunks);
    return axes.empty()
               ? "one part stands in the place of others"
               : fmt::format("the part of one rank of {} stands in the place of others", axes);
  }
  if (!halves.empty()) {
    const std::vector<int64_t> zigzag = zigzag_of_ranks(chunks / 2);
    std::vector<int64_t> reversed(order.size());
    std::iota(reversed.rbegin(), reversed.rend(), 0);
    if (order == zigzag && chunks > 2) {
      return fmt::format("the zigzag chunks of {} were put together in the order of the ranks",
                         halves);
    }
    if (order == inverse(zigzag) && chunks > 2) {
      return fmt::format("what lay in order was put into the zigzag order of {} once too often",
                         halves);
    }
    if (order == reversed) {
      return fmt::format("the two zigzag halves of each rank of {} are swapped", halves);
    }
  }
  if (const std::string axes = axes_of_size(mesh, chunks); !axes.empty()) {
    return fmt::format("the shards of {} were put together in a wrong order", axes);
  }
  if (!halves.empty()) {
    return fmt::format("zigzag chunks ({} = 2 x the size of {}) were confused", chunks, halves);
  }
  return "the parts were put together in a wrong order";
}

std::optional<Explanation> explain_chunk_order(const Assembled& tensor, const Mesh& mesh,
                                               int64_t fewest, int64_t most) {
  const std::vector<int64_t> uneven = mesh_counts(mesh);
  for (int64_t count = fewest; count <= most; ++count) {
    const bool of_mesh = std::find(uneven.begin(), uneven.end(), count) != uneven.end();
    for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      const int64_t size = tensor.shape[dim];
      if (size < count || (size % count != 0 && !of_mesh)) continue;
      const Chunks chunks{walk_along(tensor.shape, dim), count, (size + count - 1) / count};
      const std::optional<Order> order = order_of(tensor, chunks);
      if (!order || order->moved == 0) continue;
      const double choices =
          static_cast<double>(order->moved) * std::log(static_cast<double>(count));
      if (!order->sums.convinces(tensor.allowance, tensor.golden_size, choices)) continue;
      return Explanation{fmt::format("the {} chunks along {} are the golden's in the order {}",
                                     count, dim_name(tensor, dim), order_text(order->sources)),
                         likely_chunk_order(mesh, order->sources), order->sums.share()};
    }
  }
  return std::nullopt;
}

}  // namespace shardproof::sim
