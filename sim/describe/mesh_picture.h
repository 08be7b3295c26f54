// Draws the ranks of a mesh as text.
#pragma once

#include <string>

#include "mesh/mesh.h"

namespace shardproof::sim::describe {

//   dp=2 tp=3, 6 ranks
//            tp 0   1   2
//   dp 0        0   1   2
//   dp 1        3   4   5
// Columns are the innermost axis with more than one rank, rows the others, `max_rows` at most.
std::string mesh_picture(const Mesh& mesh, int64_t max_rows = 32);

}  // namespace shardproof::sim::describe
