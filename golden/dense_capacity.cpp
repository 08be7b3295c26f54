#include "golden/dense_capacity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace shardproof::golden {

DenseKept keep_within_capacity(const at::Tensor& chosen, const at::Tensor& weights,
                               const std::vector<int64_t>& groups, const RouterRule& router,
                               const CapacityRule& rule) {
  const at::Tensor wide = weights.detach().to(at::kDouble).contiguous();
  const at::Tensor map = chosen.contiguous();
  const size_t tokens = groups.size(), experts = static_cast<size_t>(router.num_experts);
  const auto weight = [&](size_t t, size_t i) { return wide.data_ptr<double>()[t * experts + i]; };
  const auto is_route = [&](size_t t, size_t i) { return map.data_ptr<bool>()[t * experts + i]; };
  DenseKept result{.kept = at::zeros_like(map), .margin = std::numeric_limits<double>::infinity()};
  for (size_t t = 0; t < tokens; ++t) {
    if (groups[t] < 0) continue;
    const auto size = std::count(groups.begin(), groups.end(), groups[t]);
    const double wanted = static_cast<double>(size * router.num_chosen) /
                          static_cast<double>(router.num_experts) * rule.factor;
    int64_t capacity = rule.minimum;
    while (static_cast<double>(capacity) < wanted) ++capacity;
    for (size_t i = 0; i < experts; ++i) {
      if (!is_route(t, i)) continue;
      int64_t before = 0;
      double next = std::numeric_limits<double>::infinity();  // the route just before this one
      for (size_t u = 0; u < tokens; ++u) {
        if (u == t || groups[u] != groups[t] || !is_route(u, i)) continue;
        const bool heavier = weight(u, i) > weight(t, i) || (weight(u, i) == weight(t, i) && u < t);
        const bool first = rule.policy == DropPolicy::kProbs ? heavier : u < t;
        before += first;
        if (first) next = std::min(next, weight(u, i));
      }
      result.kept.data_ptr<bool>()[t * experts + i] = before < capacity;
      if (rule.policy == DropPolicy::kProbs && before == capacity && capacity > 0) {
        result.margin = std::min(result.margin, next - weight(t, i));
      }
    }
  }
  return result;
}

}  // namespace shardproof::golden
