#include "sim/judge/probe/stale_leaf.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/count_of.h"
#include "tensor/dtype_name.h"

namespace shardproof::sim::judge {

std::string stale_leaf(const at::Tensor& leaf, const at::Tensor& master) {
  const at::Tensor due = master.to(leaf.scalar_type());
  if (leaf.equal(due)) return "";
  const at::Tensor is_nan = leaf.isnan().logical_and(due.isnan());
  const at::Tensor at = leaf.ne(due).logical_and(is_nan.logical_not()).flatten().nonzero();
  if (at.numel() == 0) return "";
  const int64_t first = at[0].item<int64_t>();
  return fmt::format(
      "its {} copy, which the next forward reads, is not the rounded parameter at {} of {} (the "
      "first is {:.6g}, not {:.6g}): the update did not reach it",
      dtype_name(leaf.scalar_type()), at.size(0), count_of(leaf.numel(), "element"),
      leaf.flatten()[first].item<double>(), due.flatten()[first].item<double>());
}

}  // namespace shardproof::sim::judge
