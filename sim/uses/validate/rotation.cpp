#include "sim/uses/validate/rotation.h"

#include <algorithm>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"

namespace shardproof::sim::validate {
namespace {

using Processes = std::vector<int64_t>;

Processes processes_of(const std::vector<int64_t>& ranks, const Processes& of_rank) {
  Processes processes;
  for (const int64_t rank : ranks) processes.push_back(of_rank[static_cast<size_t>(rank)]);
  return processes;
}

Call as_of_processes(Call call, const Processes& of_rank) {
  call.rank = of_rank[static_cast<size_t>(call.rank)];
  if (!call.group_ranks) return call;
  const auto processes = processes_of(*call.group_ranks, of_rank);
  call.group = group_name(call.group.substr(0, call.group.find('[')), processes);
  call.group_ranks = std::make_shared<const Processes>(processes);
  return call;
}

}  // namespace

int64_t process_of(int64_t rank, int64_t shift, int64_t world_size) {
  return ((rank + shift) % world_size + world_size) % world_size;
}

int64_t rank_at(int64_t process, int64_t shift, int64_t world_size) {
  return process_of(process, -shift, world_size);
}

std::vector<int64_t> rotation_of(const std::vector<int64_t>& processes, int64_t shift) {
  const auto count = static_cast<int64_t>(processes.size());
  Processes of_rank;
  for (int64_t rank = 0; rank < count; ++rank) {
    of_rank.push_back(processes[static_cast<size_t>(process_of(rank, shift, count))]);
  }
  return of_rank;
}

world::RankEnv placed(const world::RankEnv& env, const std::vector<int64_t>& processes) {
  const auto found = std::find(processes.begin(), processes.end(), env.rank);
  SHARDPROOF_ASSERT(found != processes.end(), "this process is one of them");
  world::RankEnv other = env;
  other.rank = found - processes.begin();
  other.world_size = static_cast<int64_t>(processes.size());
  other.make_backend = [make = env.make_backend, processes](const std::string& name,
                                                            const std::vector<int64_t>& ranks) {
    return make(name, processes_of(ranks, processes));
  };
  const auto translated =
      [&processes](
          const std::function<void(const Call&)>& hear) -> std::function<void(const Call&)> {
    if (!hear) return {};
    return [hear, processes](const Call& call) { hear(as_of_processes(call, processes)); };
  };
  other.on_call = translated(env.on_call);
  other.on_wait = translated(env.on_wait);
  return other;
}

}  // namespace shardproof::sim::validate
