// Edit distances, and the name that a misspelt one most likely means.
#include "base/error.h"

#include <catch2/catch.hpp>
#include <vector>

using shardproof::edit_distance;
using shardproof::nearest_name;

TEST_CASE("a letter more, less, another or swapped with its neighbour is one mistake") {
  CHECK(edit_distance("dropout", "dropout") == 0);
  CHECK(edit_distance("drpout", "dropout") == 1);
  CHECK(edit_distance("droppout", "dropout") == 1);
  CHECK(edit_distance("drobout", "dropout") == 1);
  CHECK(edit_distance("dorpout", "dropout") == 1);
  CHECK(edit_distance("rdopuot", "dropout") == 2);
  CHECK(edit_distance("", "tp") == 2);
  CHECK(edit_distance("tp", "") == 2);
  CHECK(edit_distance("ca", "abc") == 3);  // a letter moves once
}

TEST_CASE("of names that are equally near the first known one is meant; none when all are far") {
  const std::vector<std::string> precisions = {"float64", "float32", "float16"};
  CHECK(nearest_name("float46", precisions) == "float64");
  CHECK(nearest_name("float23", precisions) == "float32");
  CHECK(nearest_name("flaot32", precisions) == "float32");
  CHECK(nearest_name("a precision of its own", std::vector<std::string>{"x"}).empty());
}
