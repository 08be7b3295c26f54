// The golden moved along a dim.
#include <fmt/format.h>

#include <cmath>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

constexpr int64_t kLargestShift = 16;

std::optional<Explained> shifted_by(const Assembled& tensor, const Walk& walk, int64_t shift,
                                    double choice_nats) {
  Fit fit(tensor);
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
  if (!fit.explains_tensor(choice_nats)) return std::nullopt;
  return fit.sums();
}

// Experts have numbers, not places; nor have the choices of one token.
bool has_order(const Assembled& tensor, size_t dim) {
  if (tensor.has_experts()) return dim > 0;
  return !is_route_ids(tensor.name) || dim < 2;
}

std::string likely(const Assembled& tensor, int64_t size) {
  if (!is_route_ids(tensor.name)) {
    return fmt::format("an offset, a mask or a target is off by {}", size);
  }
  return fmt::format(
      "a record of routes is written or read {} position{} off, or lacks an offset of its start",
      size, size == 1 ? "" : "s");
}

}  // namespace

std::optional<Proposal> propose_shift(const Assembled& tensor, const Mesh& /*mesh*/) {
  const double choices = std::log(2.0 * kLargestShift * static_cast<double>(tensor.shape.size()));
  std::optional<Proposal> best;
  for (int64_t size = 1; size <= kLargestShift; ++size) {
    for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      if (size >= tensor.shape[dim] || !has_order(tensor, dim)) continue;
      const Walk walk = walk_along(tensor.shape, dim);
      for (const int64_t shift : {size, -size}) {
        const std::optional<Explained> sums = shifted_by(tensor, walk, shift, choices);
        if (!sums || (best && sums->share() <= best->share)) continue;
        best = Proposal{.pattern =
                            fmt::format("shifted by {} along {}: actual[i] is golden[i {} {}]",
                                        shift, dim_name(tensor, dim), shift > 0 ? "-" : "+", size),
                        .likely = likely(tensor, size),
                        .description = choices,
                        .parameters = {static_cast<double>(dim), static_cast<double>(shift)}}
                   .explaining(*sums, tensor.wrong);
      }
    }
  }
  return best;
}

}  // namespace shardproof::sim::judge
