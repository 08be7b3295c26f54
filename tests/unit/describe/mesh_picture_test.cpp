#include "sim/describe/mesh_picture.h"

#include <catch2/catch.hpp>

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::describe;

TEST_CASE("A mesh is a grid of ranks, the innermost axis across", "[cli]") {
  CHECK(mesh_picture(Mesh::training({.dp = 2, .tp = 3})) ==
        "dp=2 tp=3, 6 ranks\n"
        "        tp  0  1  2\n"
        "  dp 0      0  1  2\n"
        "  dp 1      3  4  5\n");
}

TEST_CASE("Further axes are named in each row", "[cli]") {
  const std::string picture = mesh_picture(Mesh::training({.dp = 2, .cp = 3, .tp = 2}));
  CHECK(picture.find("dp=2 cp=3 tp=2, 12 ranks\n") == 0);
  CHECK(picture.find("dp 1  cp 2      10  11\n") != std::string::npos);
}

TEST_CASE("A mesh of one axis is one row, and of none one rank", "[cli]") {
  CHECK(mesh_picture(Mesh::training({.tp = 4})) ==
        "tp=4, 4 ranks\n"
        "    tp  0  1  2  3\n"
        "        0  1  2  3\n");
  CHECK(mesh_picture(Mesh::training({})) == "one rank\n");
}

TEST_CASE("Experts have a second grid of the same ranks", "[cli]") {
  CHECK(mesh_picture(Mesh::training({.dp = 2, .tp = 2, .ep = 2})) ==
        "dp=2 tp=2, experts edp=2 ep=2, 4 ranks\n"
        "        tp  0  1\n"
        "  dp 0      0  1\n"
        "  dp 1      2  3\n"
        "the same ranks for experts\n"
        "         ep  0  1\n"
        "  edp 0      0  1\n"
        "  edp 1      2  3\n");
}

TEST_CASE("A tall mesh is cut short, and says so", "[cli]") {
  const std::string picture = mesh_picture(Mesh::training({.dp = 100, .tp = 2}), 3);
  CHECK(picture.find("  dp 2         4    5\n  .. and 97 rows more\n") != std::string::npos);
}
