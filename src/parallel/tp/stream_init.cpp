#include "parallel/tp/stream_init.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "random/rng_seeds.h"

namespace shardproof {
namespace {

// A rank's part of a full tensor along one dim: positions in the part, and those in the full
// tensor.
struct Held {
  std::vector<int64_t> own, full;
};

Held held_along(int64_t dim, const Parameter& parameter, const Mesh& mesh, int64_t rank) {
  const std::vector<int64_t> indices =
      parameter.layout.indices(dim, parameter.global_shape[static_cast<size_t>(dim)], mesh, rank);
  Held held;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0) continue;  // padding
    held.own.push_back(static_cast<int64_t>(i));
    held.full.push_back(indices[i]);
  }
  return held;
}

bool is_held_once(const Parameter& parameter, const Mesh& mesh, int64_t rank) {
  int64_t held = 0;
  for (const int64_t other : mesh.peers_along("tp", rank)) {
    held += std::ssize(held_along(0, parameter, mesh, other).full) *
            std::ssize(held_along(1, parameter, mesh, other).full);
  }
  return held == c10::multiply_integers(parameter.global_shape);
}

}  // namespace

at::Tensor drawn_in_stream(RngTracker& rng, const std::string& stream, at::IntArrayRef shape,
                           double std_deviation, const std::string& place) {
  const auto region = rng.fork(stream);
  return rng.normal(shape, place).mul_(std_deviation);
}

void draw_own_parts(const Decoder& model, const Mesh& mesh, int64_t rank, int64_t seed) {
  const int64_t tp_size = mesh.size("tp");
  RngTracker rng;
  seed_streams(rng, seed, {.tp_rank = mesh.coordinate("tp", rank), .tp_size = tp_size});
  for (const ParameterPtr& parameter : model.parameters()) {
    const std::vector<int64_t>& full = parameter->global_shape;
    if (full.size() < 2) continue;
    if (!is_held_once(*parameter, mesh, rank)) {
      throw_refused(fmt::format("{} ranks of tp draw first values of {}, of which several "
                                "hold the same part",
                                tp_size, parameter->name),
                    "set model.init: master, or a tensor_parallel_size that cuts it");
    }
    const at::Tensor part =
        drawn_in_stream(rng, kModelParallelRng, parameter->layout.local_shape(full, mesh, rank),
                        1 / std::sqrt(static_cast<double>(full.back())), parameter->name);
    at::Tensor own = at::full(full, std::numeric_limits<double>::quiet_NaN(), part.options());
    const Held rows = held_along(0, *parameter, mesh, rank);
    const Held columns = held_along(1, *parameter, mesh, rank);
    const auto at_places = [](const std::vector<int64_t>& rows,
                              const std::vector<int64_t>& columns) {
      return c10::List<std::optional<at::Tensor>>{at::tensor(rows, at::kLong).unsqueeze(1),
                                                  at::tensor(columns, at::kLong)};
    };
    at::index_put_(own, at_places(rows.full, columns.full),
                   at::index(part, at_places(rows.own, columns.own)));
    parameter->tensor = own;
  }
}

}  // namespace shardproof
