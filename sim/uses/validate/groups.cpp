#include "sim/uses/validate/groups.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "base/error.h"

namespace shardproof::sim::validate {
namespace {

using GroupNumber = std::function<int64_t(int64_t rank)>;

// Ranks with the same number are a group.
std::vector<int64_t> ranks_like(int64_t rank, int64_t world_size, const GroupNumber& number) {
  std::vector<int64_t> ranks;
  for (int64_t other = 0; other < world_size; ++other) {
    if (number(other) == number(rank)) ranks.push_back(other);
  }
  return ranks;
}

// The number of a rank among those of its host.
int64_t local_number(int64_t rank, const std::vector<int64_t>& host_of) {
  const auto end = host_of.begin() + static_cast<std::ptrdiff_t>(rank);
  return std::count(host_of.begin(), end, host_of[static_cast<size_t>(rank)]);
}

// The divisions of Euclid's algorithm; 0 where it finds a common divisor.
int64_t divisions(int64_t a, int64_t b) {
  int64_t count = 0;
  for (; b > 0; ++count) a = std::exchange(b, a % b);
  return a == 1 ? count : 0;
}

}  // namespace

std::vector<RankGroup> groups_of(int64_t rank, const std::vector<int64_t>& host_of,
                                 const std::vector<std::pair<std::string, int64_t>>& mesh) {
  const auto world_size = static_cast<int64_t>(host_of.size());
  const std::set<int64_t> hosts(host_of.begin(), host_of.end());
  const auto host_count = static_cast<int64_t>(hosts.size());
  const auto host = [&](int64_t one) { return host_of[static_cast<size_t>(one)]; };
  std::vector<RankGroup> groups;
  const auto add = [&](const std::string& name, const GroupNumber& number) {
    std::vector<int64_t> ranks = ranks_like(rank, world_size, number);
    if (ranks.size() > 1) groups.push_back({name, std::move(ranks)});
  };
  add("world", [](int64_t) { return 0; });
  int64_t inner = world_size;
  for (const auto& [axis, size] : mesh) {
    inner /= size;
    add(axis, [inner, size](int64_t one) { return one / (inner * size) * inner + one % inner; });
  }
  if (host_count == 1) return groups;
  std::vector<int64_t> locals;
  for (int64_t one = 0; one < world_size; ++one) locals.push_back(local_number(one, host_of));
  add("node", host);
  if (host_count < world_size) {
    add("rail", [&](int64_t one) { return locals[static_cast<size_t>(one)]; });
  }
  for (int64_t bit = 0; host_count > 2 && (int64_t{1} << bit) < host_count; ++bit) {
    add("half" + std::to_string(bit), [&, bit](int64_t one) { return host(one) >> bit & 1; });
  }
  return groups;
}

bool is_built_in_group(const std::string& name) {
  const bool is_half = name.starts_with("half") && name.size() > 4 &&
                       name.find_first_not_of("0123456789", 4) == std::string::npos;
  return name == "world" || name == "node" || name == "rail" || is_half;
}

int64_t pairing_rounds(int64_t world_size) {
  return world_size < 2 ? 0 : world_size + world_size % 2 - 1;
}

int64_t partner_of(int64_t rank, int64_t world_size, int64_t round) {
  const int64_t seats = world_size + world_size % 2, turning = seats - 1;
  if (world_size < 2) return -1;
  // The last seat stays, and the others turn; seats that add up to `round` meet.
  int64_t partner = 0;
  const int64_t half = [&] {  // who meets the last seat: 2 * half = round, modulo turning
    return round % 2 == 0 ? round / 2 : (round + turning) / 2;
  }();
  if (rank == seats - 1) {
    partner = half % turning;
  } else if (rank == half % turning) {
    partner = seats - 1;
  } else {
    partner = ((round - rank) % turning + turning) % turning;
  }
  return partner < world_size ? partner : -1;
}

// Neighbours are often on one host, so that rounds in their order would meet the same few hosts
// first. The multiples of the step that takes most divisions are the farthest from each other.
std::vector<int64_t> pairings_of(int64_t world_size, int64_t most, int64_t stage_round) {
  const int64_t all = pairing_rounds(world_size), count = std::min(all, most);
  int64_t step = 1;
  for (int64_t other = 2; other < all; ++other) {
    if (divisions(all, other) > divisions(all, step)) step = other;
  }
  std::vector<int64_t> rounds;
  for (int64_t i = 0; i < count; ++i) rounds.push_back((stage_round * count + i) * step % all);
  return rounds;
}

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

std::vector<int64_t> rotation_of(const std::vector<int64_t>& processes, int64_t shift) {
  const auto count = static_cast<int64_t>(processes.size());
  Processes of_rank;
  for (int64_t rank = 0; rank < count; ++rank) {
    of_rank.push_back(processes[static_cast<size_t>(process_of(rank, shift, count))]);
  }
  return of_rank;
}

std::vector<int64_t> shifts_of(const std::vector<int64_t>& processes,
                               const std::vector<int64_t>& host_of, int64_t rotations) {
  std::set<int64_t> there;
  for (const int64_t process : processes) there.insert(host_of[static_cast<size_t>(process)]);
  const auto hosts = static_cast<int64_t>(there.size());
  const auto size = static_cast<int64_t>(processes.size());
  const int64_t step = hosts > 1 && size % hosts == 0 ? size / hosts : 1;
  std::vector<int64_t> shifts = {0};
  for (int64_t k = 0; k < rotations; ++k) shifts.push_back(k * step % size);
  return shifts;
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
