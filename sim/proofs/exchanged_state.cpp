#include "sim/proofs/exchanged_state.h"

#include <ATen/ATen.h>

namespace shardproof::sim {

ShardedState state_of_all_ranks(const ShardedState& own, Communicator& world) {
  std::vector<at::Tensor> flat;
  std::vector<int64_t> places;
  for (const ShardedTensor& tensor : own) {
    flat.push_back(tensor.data.reshape({-1}));
    places.insert(places.end(), tensor.global_offset.begin(), tensor.global_offset.end());
    places.insert(places.end(), tensor.replica_id.begin(), tensor.replica_id.end());
  }
  const at::Tensor values = world.all_gather(at::cat(flat), 0, "checkpoint values");
  const at::Tensor own_places = at::tensor(places, at::kLong).to(values.device());
  const at::Tensor all_places = world.all_gather(own_places, 0, "checkpoint places").cpu();
  const int64_t* place = all_places.const_data_ptr<int64_t>();
  ShardedState all;
  int64_t start = 0;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    for (ShardedTensor tensor : own) {
      const int64_t count = tensor.data.numel();
      tensor.data = values.narrow(0, start, count).view(tensor.data.sizes());
      start += count;
      for (int64_t& offset : tensor.global_offset) offset = *place++;
      for (int64_t& part : tensor.replica_id) part = *place++;
      all.push_back(std::move(tensor));
    }
  }
  return all;
}

}  // namespace shardproof::sim
