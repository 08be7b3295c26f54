#include "policy/saved_streams.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/seed.h"

namespace shardproof {
namespace {

using nlohmann::json;

// One stream with a row per rank, or with one row when all ranks had the same.
struct SavedStream {
  std::vector<uint64_t> seeds;
  std::vector<int64_t> drawn;
  at::Tensor states;  // [rows, bytes]

  size_t row_of(int64_t rank) const { return seeds.size() == 1 ? 0 : static_cast<size_t>(rank); }
  RngState row(size_t index) const {
    return {.seed = seeds[index],
            .offset = drawn[index],
            .state = states[static_cast<int64_t>(index)].clone()};
  }
  bool alike(size_t a, size_t b) const {
    return seeds[a] == seeds[b] && drawn[a] == drawn[b] &&
           states[static_cast<int64_t>(a)].equal(states[static_cast<int64_t>(b)]);
  }
  // The row that all of `ranks` have; none when they differ or there are none.
  std::optional<size_t> row_of_all(const std::vector<int64_t>& ranks) const {
    if (ranks.empty()) return std::nullopt;
    const size_t first = row_of(ranks.front());
    for (const int64_t rank : ranks) {
      if (!alike(first, row_of(rank))) return std::nullopt;
    }
    return first;
  }
};

Mesh saved_mesh(const json& mesh) {
  AxisSizes sizes;  // an axis that is younger than the checkpoint had one rank
  for (const auto& axis : kTrainingAxes) sizes.*axis.size = mesh.value(axis.name, int64_t{1});
  return Mesh::training(sizes);
}

SavedStream saved_stream(const json& numbers, const at::Tensor& states, const Mesh& mesh) {
  SavedStream stream{numbers.at("seeds").get<std::vector<uint64_t>>(),
                     numbers.at("drawn").get<std::vector<int64_t>>(), states};
  const auto rows = static_cast<int64_t>(stream.seeds.size());
  const bool whole = (rows == 1 || rows == mesh.world_size()) && states.dim() == 2 &&
                     states.size(0) == rows && stream.drawn.size() == stream.seeds.size() &&
                     states.scalar_type() == at::kByte;
  if (!whole) {
    throw_bad_input("the saved random streams are not those of a mesh",
                    "copy the checkpoint again, or load another one");
  }
  // Earlier versions wrote bits of a seed that no generator takes.
  for (uint64_t& seed : stream.seeds) seed &= kMaxGeneratorSeed;
  return stream;
}

void check_state(const RngState& stream, const std::string& name) {
  try {
    at::detail::createCPUGenerator().set_state(stream.state);
  } catch (const c10::Error&) {
    throw_bad_input(
        fmt::format("the {} bytes saved for random stream '{}' are not a generator's state",
                    stream.state.numel(), name),
        "copy the checkpoint again, or load another one");
  }
}

// The axes over which streams differ (rng_seeds.h).
constexpr const char* kStreamAxes[] = {"tp", "pp"};

// The row with which `rank` of `mesh` continues: that of all saved ranks, or of those at its place
// of axes that have kept their size.
std::optional<size_t> row_for(const SavedStream& stream, const Mesh& saved, const Mesh& mesh,
                              int64_t rank) {
  if (saved == mesh) return stream.row_of(rank);
  std::vector<int64_t> ranks(static_cast<size_t>(saved.world_size()));
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  if (const auto row = stream.row_of_all(ranks)) return row;
  for (const char* axis : kStreamAxes) {
    if (saved.size(axis) != mesh.size(axis)) continue;
    std::erase_if(ranks, [&](int64_t other) {
      return saved.coordinate(axis, other) != mesh.coordinate(axis, rank);
    });
  }
  return stream.row_of_all(ranks);
}

bool differs_along(const char* axis, const SavedStream& stream, const Mesh& saved) {
  for (int64_t rank = 0; rank < saved.world_size(); ++rank) {
    if (!stream.row_of_all(saved.peers_along(axis, rank))) return true;
  }
  return false;
}

// Ranks that had the same stream along an axis have the same again.
RngState begun_anew(const SavedStream& stream, const std::string& name, int64_t step,
                    const Mesh& saved, const MeshComm& comm) {
  const Mesh& mesh = comm.mesh();
  std::string text = fmt::format("{} from step {}", name, step);
  for (const char* axis : kStreamAxes) {
    if (!differs_along(axis, stream, saved)) continue;
    text += fmt::format(" on {} {} of {}", axis == kStreamAxes[0] ? "rank" : "stage",
                        mesh.coordinate(axis, comm.rank()), mesh.size(axis));
  }
  const uint64_t seed = generator_seed(static_cast<int64_t>(stream.seeds.front()), text);
  return {.seed = seed, .offset = 0, .state = at::detail::createCPUGenerator(seed).get_state()};
}

}  // namespace

json gather_streams(const RngTracker& rng, MeshComm& comm, at::Device device,
                    NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  json mesh = json::object(), streams = json::object();
  for (const auto& axis : kTrainingAxes) mesh[axis.name] = comm.mesh().size(axis.name);
  for (const auto& [name, state] : rng.states()) {
    const auto gather = [&](const at::Tensor& own) {
      return comm.world().all_gather(own.unsqueeze(0).to(device), 0, "rng " + name).cpu();
    };
    const at::Tensor numbers =
        gather(at::tensor({static_cast<int64_t>(state.seed), state.offset}, at::kLong));
    SavedStream all{.seeds = {}, .drawn = {}, .states = gather(state.state)};
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; rank < numbers.size(0); ++rank) {
      all.seeds.push_back(static_cast<uint64_t>(numbers[rank][0].item<int64_t>()));
      all.drawn.push_back(numbers[rank][1].item<int64_t>());
      ranks.push_back(rank);
    }
    if (all.row_of_all(ranks)) {
      all.seeds.resize(1);
      all.drawn.resize(1);
      all.states = all.states.narrow(0, 0, 1).contiguous();
    }
    streams[name] = {{"seeds", all.seeds}, {"drawn", all.drawn}};
    tensors.emplace_back(name, all.states);
  }
  return {{"mesh", mesh}, {"streams", streams}};
}

std::vector<std::string> set_streams(const json& saved, const SafetensorsFile& file, int64_t step,
                                     const MeshComm& comm, RngTracker& rng) {
  std::vector<std::string> anew;
  RngStates states;
  try {
    const Mesh mesh = saved_mesh(saved.at("mesh"));
    for (const auto& [name, numbers] : saved.at("streams").items()) {
      const SavedStream stream = saved_stream(numbers, file.get(name), mesh);
      if (const auto row = row_for(stream, mesh, comm.mesh(), comm.rank())) {
        states[name] = stream.row(*row);
        check_state(states[name], name);
      } else {
        states[name] = begun_anew(stream, name, step, mesh, comm);
        anew.push_back(name);
      }
    }
  } catch (const json::exception&) {
    throw_bad_input(file.path() + " has random streams that state.json does not describe",
                    "copy the checkpoint again, or load another one");
  }
  rng.set_states(states);
  return anew;
}

}  // namespace shardproof
