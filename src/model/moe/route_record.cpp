#include "model/moe/route_record.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof {
namespace {

// The ids of one layer, [samples * positions, K].
at::Tensor of_layer(const RouteRecord& record, int64_t layer) {
  const auto found = std::find(record.layers.begin(), record.layers.end(), layer);
  SHARDPROOF_ASSERT(found != record.layers.end(), "the record has every layer with experts");
  return record.ids.select(2, found - record.layers.begin()).flatten(0, 1);
}

std::string place_of(const RouteRecord& record, int64_t flat) {
  const int64_t layers = record.ids.size(2), positions = record.ids.size(1);
  return fmt::format("sample {}, position {}, layer {}", flat / layers / positions,
                     flat / layers % positions, record.layers.at(flat % layers));
}

void refuse_other(const char* what, const std::string& has, const std::string& wants) {
  if (has == wants) return;
  throw_refused(fmt::format("the route record has {} {}, but this run has {}", what, has, wants),
                "replay a record of the same batch and model");
}

}  // namespace

RouteRecord empty_route_record(int64_t samples, int64_t positions, std::vector<int64_t> layers,
                               int64_t num_chosen, int64_t num_experts) {
  return {.ids = at::full({samples, positions, std::ssize(layers), num_chosen}, -1, at::kLong),
          .layers = std::move(layers),
          .num_experts = num_experts};
}

void record_routes(RouteRecord& record, int64_t layer, const at::Tensor& token_map,
                   const at::Tensor& ids) {
  const at::Tensor real = token_map.reshape({-1}).ge(0).nonzero().view({-1});
  of_layer(record, layer)
      .index_put_({token_map.reshape({-1}).index({real})}, ids.flatten(0, -2).index({real}));
}

ReplayedRoutes replay_routes(const RouteRecord& record, int64_t layer, const at::Tensor& token_map,
                             const at::Tensor& live) {
  const at::Tensor real = token_map.ge(0).unsqueeze(-1);
  const at::Tensor recorded = of_layer(record, layer).index({token_map.clamp_min(0)}).to(at::kLong);
  const at::Tensor missing = recorded.lt(0).all(-1, /*keepdim=*/true).logical_and(real);
  at::Tensor ids = at::where(missing, live, std::get<0>(recorded.sort(-1)));
  ids = ids.masked_fill(real.logical_not(), -1);
  return {.ids = ids, .live_tokens = missing.sum().item<int64_t>()};
}

void check_route_record(const RouteRecord& record, const RouteRecord& wanted) {
  const auto number = [](int64_t value) { return std::to_string(value); };
  refuse_other("samples", number(record.ids.size(0)), number(wanted.ids.size(0)));
  refuse_other("positions", number(record.ids.size(1)), number(wanted.ids.size(1)));
  refuse_other("layers", fmt::format("{}", record.layers), fmt::format("{}", wanted.layers));
  refuse_other("experts per token", number(record.ids.size(3)), number(wanted.ids.size(3)));
  refuse_other("experts", number(record.num_experts), number(wanted.num_experts));
  const at::Tensor sorted = std::get<0>(record.ids.flatten(0, 2).sort(-1));
  const at::Tensor absent = sorted.eq(-1).all(-1);
  const auto refuse = [&](const at::Tensor& wrong, const std::string& what) {
    const at::Tensor places = wrong.any(-1).logical_and(absent.logical_not()).nonzero();
    if (places.numel() == 0) return;
    const int64_t first = places[0].item<int64_t>();
    throw_bad_input(fmt::format("the route record has {} at {}", what, place_of(record, first)),
                    fmt::format("give each token {} different ids from 0 to {}, or -1 for all",
                                sorted.size(-1), record.num_experts - 1));
  };
  refuse(sorted.lt(0).logical_or(sorted.ge(record.num_experts)), "an id that is not an expert");
  refuse(sorted.diff(1, -1).eq(0), "the same expert twice");
}

}  // namespace shardproof
