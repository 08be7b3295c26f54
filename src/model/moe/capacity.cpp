#include "model/moe/capacity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/moe/selection.h"
#include "tensor/int64_list.h"

namespace shardproof {
namespace {

// [groups] int64: the capacity of each group.
at::Tensor capacities(const at::Tensor& real, const at::Tensor& groups, const RouterRule& router,
                      const CapacityRule& rule) {
  std::vector<int64_t> all = int64_list(groups.masked_select(real).bincount());
  for (int64_t& count : all) count = expert_capacity(count, router, rule);
  return at::tensor(all, at::kLong).to(groups.device());
}

}  // namespace

// The order of these operations decides about the last bit, and so about C.
int64_t expert_capacity(int64_t tokens, const RouterRule& router, const CapacityRule& rule) {
  const double share =
      static_cast<double>(tokens * router.num_chosen) / static_cast<double>(router.num_experts);
  return std::max(rule.minimum, static_cast<int64_t>(std::ceil(share * rule.factor)));
}

KeptRoutes routes_within_capacity(const at::Tensor& ids, const at::Tensor& weights,
                                  const at::Tensor& groups, const RouterRule& router,
                                  const CapacityRule& rule) {
  const at::NoGradGuard no_grad;
  KeptRoutes result{.kept = at::zeros_like(ids, at::kBool),
                    .margin = std::numeric_limits<double>::infinity()};
  const at::Tensor routes = ids.ge(0).view({-1}).nonzero().view({-1});  // in order of (token, k)
  if (routes.numel() == 0) return result;
  const at::Tensor capacity = capacities(ids.ge(0).any(-1), groups, router, rule);
  const at::Tensor group = groups.unsqueeze(-1).expand_as(ids).reshape({-1}).index({routes});
  const at::Tensor queue = group * router.num_experts + ids.reshape({-1}).index({routes});
  const at::Tensor weight = weights.reshape({-1}).index({routes});

  // Routes by (queue, place in it).
  at::Tensor order = at::arange(routes.numel(), routes.options());
  if (rule.policy == DropPolicy::kProbs) {
    order = weight.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  }
  order = order.index({queue.index({order}).argsort(/*stable=*/true, 0, /*descending=*/false)});
  const at::Tensor sorted = queue.index({order});
  const at::Tensor place = at::arange(routes.numel(), routes.options()) -
                           at::searchsorted(sorted, sorted, /*out_int32=*/false, /*right=*/false);
  const at::Tensor room = capacity.index({group.index({order})});
  result.kept.view({-1}).index_put_({routes.index({order})}, place.lt(room));

  const at::Tensor first_dropped = place.eq(room).logical_and(room.gt(0)).nonzero().view({-1});
  if (rule.policy == DropPolicy::kProbs && first_dropped.numel() > 0) {
    const at::Tensor in_order = weight.index({order}).to(at::kDouble);
    const at::Tensor margins =
        in_order.index({first_dropped - 1}) - in_order.index({first_dropped});
    result.margin = margins.min().item<double>();
    refuse_near(margins, router.least_margin, "an expert drops one of two routes whose weights");
  }
  return result;
}

}  // namespace shardproof
