#include "sim/describe/mesh_picture.h"

#include <fmt/format.h>

#include <vector>

namespace shardproof::sim::describe {

namespace {

std::vector<MeshAxis> wide_axes(const Mesh& mesh) {
  std::vector<MeshAxis> axes;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size > 1) axes.push_back(axis);
  }
  return axes;
}

// "dp 1  cp 0": the coordinates of a row's ranks on every axis except that of the columns.
std::string row_label(const Mesh& mesh, const std::vector<MeshAxis>& axes, int64_t rank) {
  std::string label;
  for (size_t i = 0; i + 1 < axes.size(); ++i) {
    label += fmt::format("{}{} {}", i == 0 ? "" : "  ", axes[i].name,
                         mesh.coordinate(axes[i].name, rank));
  }
  return label;
}

}  // namespace

std::string mesh_picture(const Mesh& mesh, int64_t max_rows) {
  const int64_t world_size = mesh.world_size();
  const std::vector<MeshAxis> axes = wide_axes(mesh);
  if (axes.empty()) return "one rank\n";
  std::string picture = fmt::format("{}, {} ranks\n", mesh.describe(), world_size);
  const MeshAxis& columns = axes.back();
  if (columns.size > 32) return picture;
  const size_t width = fmt::format("{}", world_size - 1).size() + 2;
  const size_t label_width = row_label(mesh, axes, world_size - 1).size();
  picture += fmt::format("  {:<{}}  {}", "", label_width, columns.name);
  for (int64_t column = 0; column < columns.size; ++column) {
    picture += fmt::format("{:>{}}", column, width);
  }
  picture += '\n';
  const int64_t rows = world_size / columns.size;
  for (int64_t row = 0; row < std::min(rows, max_rows); ++row) {
    const int64_t first = row * columns.size;
    picture += fmt::format("  {:<{}}  {:<{}}", row_label(mesh, axes, first), label_width, "",
                           columns.name.size());
    for (int64_t column = 0; column < columns.size; ++column) {
      picture += fmt::format("{:>{}}", first + column, width);
    }
    picture += '\n';
  }
  if (rows > max_rows) picture += fmt::format("  .. and {} rows more\n", rows - max_rows);
  return picture;
}

}  // namespace shardproof::sim::describe
