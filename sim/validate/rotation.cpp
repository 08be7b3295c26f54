#include "sim/validate/rotation.h"

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace shardproof::sim {
namespace {

std::vector<int64_t> processes_of(const std::vector<int64_t>& ranks, int64_t shift, int64_t size) {
  std::vector<int64_t> processes;
  for (const int64_t rank : ranks) processes.push_back(process_of(rank, shift, size));
  return processes;
}

Call as_of_processes(Call call, int64_t shift, int64_t size) {
  call.rank = process_of(call.rank, shift, size);
  if (!call.group_ranks) return call;
  const auto processes = processes_of(*call.group_ranks, shift, size);
  call.group = group_name(call.group.substr(0, call.group.find('[')), processes);
  call.group_ranks = std::make_shared<const std::vector<int64_t>>(processes);
  return call;
}

}  // namespace

int64_t process_of(int64_t rank, int64_t shift, int64_t world_size) {
  return ((rank + shift) % world_size + world_size) % world_size;
}

int64_t rank_at(int64_t process, int64_t shift, int64_t world_size) {
  return process_of(process, -shift, world_size);
}

RankEnv rotated(const RankEnv& env, int64_t shift) {
  RankEnv other = env;
  const int64_t size = env.world_size;
  other.rank = rank_at(env.rank, shift, size);
  other.make_backend = [make = env.make_backend, shift, size](const std::string& name,
                                                              const std::vector<int64_t>& ranks) {
    return make(name, processes_of(ranks, shift, size));
  };
  const auto translated =
      [shift,
       size](const std::function<void(const Call&)>& hear) -> std::function<void(const Call&)> {
    if (!hear) return {};
    return [hear, shift, size](const Call& call) { hear(as_of_processes(call, shift, size)); };
  };
  other.on_call = translated(env.on_call);
  other.on_wait = translated(env.on_wait);
  return other;
}

}  // namespace shardproof::sim
