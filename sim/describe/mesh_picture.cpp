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

// The same ranks as the parts for experts see them; no axes where there are none.
Mesh experts_view(const Mesh& mesh) {
  if (mesh.parts().empty()) return {};
  std::vector<MeshAxis> axes = {{"pp", mesh.size("pp")}};
  for (const MeshPart& part : mesh.parts()) axes.push_back({part.name, part.size});
  return Mesh(axes);
}

std::string grid(const Mesh& mesh, int64_t max_rows) {
  const int64_t world_size = mesh.world_size();
  const std::vector<MeshAxis> axes = wide_axes(mesh);
  std::string picture;
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

}  // namespace

std::string mesh_picture(const Mesh& mesh, int64_t max_rows) {
  if (wide_axes(mesh).empty()) return "one rank\n";
  const std::string picture =
      fmt::format("{}, {} ranks\n{}", mesh.describe(), mesh.world_size(), grid(mesh, max_rows));
  const Mesh experts = experts_view(mesh);
  if (experts.axes().empty()) return picture;
  return picture + "the same ranks for experts\n" + grid(experts, max_rows);
}

}  // namespace shardproof::sim::describe
