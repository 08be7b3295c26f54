#include "parallel/style/token_cuts.h"

#include <algorithm>

namespace shardproof {

std::vector<std::string> TokenCuts::position_axes(const Mesh& mesh) const {
  std::vector<std::string> axes;
  if (mesh.size(ring_axis) > 1) axes.push_back(ring_axis);
  for (const std::string& axis : inner_axes) {
    if (mesh.size(axis) > 1) axes.push_back(axis);
  }
  return axes;
}

std::vector<std::string> TokenCuts::token_axes(const Mesh& mesh) const {
  std::vector<std::string> axes = sample_axes;
  for (const std::string& axis : position_axes(mesh)) axes.push_back(axis);
  return axes;
}

bool is_first_of_samples(const TokenCuts& cuts, const Mesh& mesh, int64_t rank) {
  const auto& samples = cuts.sample_axes;
  return std::all_of(mesh.axes().begin(), mesh.axes().end(), [&](const MeshAxis& axis) {
    return axis.name == cuts.stage_axis || std::ranges::find(samples, axis.name) != samples.end() ||
           mesh.coordinate(axis.name, rank) == 0;
  });
}

int64_t size_of(const Mesh& mesh, const std::vector<std::string>& axes) {
  int64_t size = 1;
  for (const std::string& axis : axes) size *= mesh.size(axis);
  return size;
}

int64_t coordinate_of(const Mesh& mesh, const std::vector<std::string>& axes, int64_t rank) {
  int64_t coordinate = 0;
  for (const std::string& axis : axes) {
    coordinate = coordinate * mesh.size(axis) + mesh.coordinate(axis, rank);
  }
  return coordinate;
}

}  // namespace shardproof
