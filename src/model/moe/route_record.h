// The experts that a router chose for each token of a batch, kept and used again by a trainer that
// must choose as the scores did. A record knows tokens by (sample, position) and layers by their
// number in the model, so that meshes, packing and microbatches may differ.
//
// An entry whose K ids are all -1 was not recorded: that token is routed live.
// Source: NVIDIA/Megatron-LM megatron/core/transformer/moe/router_replay.py, which matches layers
// by the order in which they were made, and tokens by their place on the rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace shardproof {

struct RouteRecord {
  at::Tensor ids;               // [samples, positions, layers, K] int64
  std::vector<int64_t> layers;  // the numbers of the layers with experts, ascending
  int64_t num_experts = 0;
};

RouteRecord empty_route_record(int64_t samples, int64_t positions, std::vector<int64_t> layers,
                               int64_t num_chosen, int64_t num_experts);

//   token_map  [..] int64      sample * positions + position of each token; -1 for padding
//   ids        [.., K] int64   what select_experts gave for layer number `layer`
void record_routes(RouteRecord& record, int64_t layer, const at::Tensor& token_map,
                   const at::Tensor& ids);

struct ReplayedRoutes {
  at::Tensor ids;           // [.., K], ascending; -1 for padding
  int64_t live_tokens = 0;  // tokens that the record does not have
};

// `live` [.., K] is what the router chooses now.
ReplayedRoutes replay_routes(const RouteRecord& record, int64_t layer, const at::Tensor& token_map,
                             const at::Tensor& live);

// Throws Error(kRefused) when the record is of another batch or model than `wanted`, an empty
// record, and Error(kBadInput) for an id that is none of the experts or stands twice at a token.
void check_route_record(const RouteRecord& record, const RouteRecord& wanted);

}  // namespace shardproof
