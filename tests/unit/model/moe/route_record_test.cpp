#include "model/moe/route_record.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "model/moe/selection.h"
#include "tests/support/said_by.h"
#include "tests/unit/model/moe/rules.h"

namespace shardproof::tests {
namespace {

using Catch::Matchers::Contains;

constexpr int64_t kSamples = 3, kPositions = 5, kExperts = 7, kChosen = 2;
const std::vector<int64_t> kLayers = {1, 4};

RouteRecord empty() { return empty_route_record(kSamples, kPositions, kLayers, kChosen, kExperts); }

// [3, 5, 2]: the ids of a layer of the whole batch.
at::Tensor ids_of_layer(int64_t layer) {
  const RouterRule router{.num_experts = kExperts, .num_chosen = kChosen};
  return select_experts(drawn({kSamples, kPositions, kExperts}, 50 + layer), {}, router).ids;
}

RouteRecord whole_record() {
  RouteRecord record = empty();
  const at::Tensor map = at::arange(kSamples * kPositions, at::kLong).view({kSamples, kPositions});
  for (const int64_t layer : kLayers) record_routes(record, layer, map, ids_of_layer(layer));
  return record;
}

}  // namespace

TEST_CASE("Pieces of a batch record and replay by sample, position and layer", "[moe][MR-16]") {
  RouteRecord record = empty();
  // Two pieces as two ranks have them: tokens in another order, and padding.
  const std::vector<at::Tensor> maps = {
      numbers({14, -1, 0, 7, 3, 11}).view({2, 3}),
      numbers({1, 2, 4, 5, 6, 8, 9, 10, 12, 13, -1}).view({1, 11})};
  for (const int64_t layer : {4, 1}) {
    for (const at::Tensor& map : maps) {
      const at::Tensor ids = ids_of_layer(layer).flatten(0, 1).index({map.clamp_min(0)});
      record_routes(record, layer, map, ids);
    }
  }
  CHECK(at::equal(record.ids, whole_record().ids));
  CHECK(at::equal(record.ids.select(2, 0), ids_of_layer(1)));
  CHECK(at::equal(record.ids.select(2, 1), ids_of_layer(4)));

  const at::Tensor live = at::full({2, 3, kChosen}, 99, at::kLong);
  const ReplayedRoutes replayed = replay_routes(record, 4, maps[0], live);
  CHECK(replayed.live_tokens == 0);
  const at::Tensor wanted = ids_of_layer(4).flatten(0, 1).index({maps[0].clamp_min(0)});
  CHECK(at::equal(replayed.ids, wanted.masked_fill(maps[0].lt(0).unsqueeze(-1), -1)));
}

TEST_CASE("A token without an entry is routed live and counted", "[moe][MR-16]") {
  RouteRecord record = whole_record();
  record.ids.select(0, 1).select(0, 2).fill_(-1);  // sample 1, position 2, in both layers
  record.ids.select(0, 0).select(0, 0).fill_(-1);  // not of these tokens
  check_route_record(record, empty());
  const at::Tensor map = numbers({6, 7, -1}), live = numbers({0, 1, 2, 3, 4, 5}).view({3, 2});
  const ReplayedRoutes replayed = replay_routes(record, 1, map, live);
  CHECK(replayed.live_tokens == 1);
  CHECK(at::equal(replayed.ids[0], ids_of_layer(1)[1][1]));
  CHECK(at::equal(replayed.ids[1], live[1]));
  CHECK(at::equal(replayed.ids[2], numbers({-1, -1})));
}

TEST_CASE("Ids of a record are replayed in ascending order", "[moe][MR-16]") {
  RouteRecord record = empty();
  record.ids.copy_(numbers({5, 2}).expand_as(record.ids));
  check_route_record(record, empty());
  const at::Tensor live = numbers({0, 1}).view({1, 2});
  CHECK(at::equal(replay_routes(record, 1, numbers({3}), live).ids, numbers({2, 5}).view({1, 2})));
}

TEST_CASE("A record of another batch or model, or with wrong ids, is a sentence", "[moe][MR-16]") {
  const auto check = [](const RouteRecord& record) {
    return said_by([&] { check_route_record(record, empty()); });
  };
  CHECK(check(whole_record()).empty());
  CHECK_THAT(check(empty_route_record(4, kPositions, kLayers, kChosen, kExperts)),
             Contains("4 samples") || Contains("samples 4"));
  CHECK_THAT(check(empty_route_record(kSamples, 6, kLayers, kChosen, kExperts)),
             Contains("positions"));
  CHECK_THAT(check(empty_route_record(kSamples, kPositions, {1, 3}, kChosen, kExperts)),
             Contains("[1, 3]"));
  CHECK_THAT(check(empty_route_record(kSamples, kPositions, kLayers, 3, kExperts)),
             Contains("experts per token"));
  CHECK_THAT(check(empty_route_record(kSamples, kPositions, kLayers, kChosen, 8)),
             Contains("experts 8"));
  const auto with = [](std::vector<int64_t> ids) {
    RouteRecord record = whole_record();
    record.ids[2][3][1].copy_(numbers(ids));
    return record;
  };
  CHECK_THAT(check(with({0, 7})), Contains("not an expert at sample 2, position 3, layer 4"));
  CHECK_THAT(check(with({-1, 3})), Contains("not an expert at sample 2, position 3, layer 4"));
  CHECK_THAT(check(with({3, 3})), Contains("twice at sample 2, position 3, layer 4"));
  CHECK(check(with({-1, -1})).empty());
}

}  // namespace shardproof::tests
