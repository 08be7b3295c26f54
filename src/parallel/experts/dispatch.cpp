#include "parallel/experts/dispatch.h"

#include <ATen/ATen.h>

#include <vector>

#include "collective/all_to_all.h"
#include "collective/mappings.h"
#include "tensor/int64_list.h"

namespace shardproof {
namespace {

// Rows that arrived from several ranks, by expert within each rank's -> by expert, and within an
// expert by rank: the places from which they are taken. `counts` [ranks, n].
at::Tensor order_by_expert(const at::Tensor& counts) {
  const at::Tensor experts = at::arange(counts.size(1), at::kLong).repeat({counts.size(0)});
  return experts.repeat_interleave(counts.reshape({-1})).argsort(/*stable=*/true, 0, false);
}

}  // namespace

at::Tensor experts_by_all_to_all(const at::Tensor& x, const at::Tensor& ids,
                                 const at::Tensor& weights, const OwnExperts& own,
                                 const ExpertRanks& ranks, const std::string& label,
                                 const StepContext& context) {
  const int64_t here = own.down.size(0), ep = ranks.ep.size();
  const ExpertRows routed = rows_by_expert(ids, here * ep);
  const at::Tensor sent = at::tensor(routed.counts, at::kLong).view({ep, here});
  const at::Tensor received = ranks.ep.all_to_all(sent.to(x.device()), label + ".counts");
  // [etp, ep, n]: what each rank of etp got from each of ep.
  const at::Tensor arrived =
      ranks.etp.all_gather(received.unsqueeze(0), 0, label + ".held counts").cpu();
  const std::vector<int64_t> to = int64_list(sent.sum(1)), from = int64_list(received.sum(1)),
                             held = int64_list(arrived.flatten(1).sum(1));

  const at::Tensor dispatched = all_to_all_with_all_to_all_backward(
      gather_rows(x, routed), ranks.ep, label + ".dispatch", to, from);
  const at::Tensor gathered =
      all_gather_with_reduce_scatter_backward(dispatched, ranks.etp, 0, label + ".gather", held);
  const at::Tensor order = order_by_expert(arrived.flatten(0, 1)).to(x.device());
  const ExpertRows rows{.routes = {}, .counts = int64_list(arrived.flatten(0, 1).sum(0))};
  const at::Tensor outputs = run_experts(gathered.index_select(0, order), rows, own, context);
  const at::Tensor in_place = outputs.index_select(0, order.argsort());
  const at::Tensor reduced =
      reduce_scatter_with_all_gather_backward(in_place, ranks.etp, 0, label + ".reduce", held);
  const at::Tensor returned =
      all_to_all_with_all_to_all_backward(reduced, ranks.ep, label + ".combine", from, to);
  return combine_rows(returned, weights, routed);
}

at::Tensor experts_by_all_gather(const at::Tensor& x, const at::Tensor& ids,
                                 const at::Tensor& weights, const OwnExperts& own,
                                 const ExpertRanks& ranks, const std::string& label,
                                 const StepContext& context) {
  const int64_t here = own.down.size(0), first = ranks.ep.rank() * here;
  const at::Tensor tokens = at::full({1}, x.size(0), ids.options());
  const std::vector<int64_t> sizes = int64_list(ranks.all.all_gather(tokens, 0, label + ".tokens"));
  const at::Tensor all_ids = ranks.all.all_gather(ids, 0, label + ".ids", sizes);
  const at::Tensor all_x =
      all_gather_with_reduce_scatter_backward(x, ranks.all, 0, label + ".dispatch", sizes);
  const at::Tensor all_weights =
      all_gather_with_reduce_scatter_backward(weights, ranks.all, 0, label + ".weights", sizes);
  const at::Tensor is_here = all_ids.ge(first).logical_and(all_ids.lt(first + here));
  const ExpertRows rows =
      rows_by_expert(at::where(is_here, all_ids - first, at::full_like(all_ids, -1)), here);
  const at::Tensor outputs = run_experts(gather_rows(all_x, rows), rows, own, context);
  return reduce_scatter_with_all_gather_backward(combine_rows(outputs, all_weights, rows),
                                                 ranks.all, 0, label + ".combine", sizes);
}

}  // namespace shardproof
