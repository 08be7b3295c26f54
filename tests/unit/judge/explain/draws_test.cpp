#include <catch2/catch.hpp>

#include "observe/draw_log.h"
#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

// One draw; its columns are stream, seed, offset, count and state.
std::vector<double> row(const char* stream, double seed, double offset, double count,
                        double state) {
  return {static_cast<double>(stream_id(stream)), seed, offset, count, state};
}

Piece piece_on(int64_t rank, std::vector<double> actual, std::vector<double> golden) {
  Piece piece;
  piece.rank = rank;
  piece.actual = std::move(actual);
  piece.golden = std::move(golden);
  return piece;
}

std::string said(const std::vector<Piece>& pieces, const std::string& name = "draw.dropout") {
  const Mesh mesh({{"tp", 4}});
  ResultRow row(Outcome::kMismatch);
  row.kind = kind_of_name(Phase::kForward, name);
  row.name = name;
  Symptoms symptoms{mesh, Precision::kFloat64, {&row}, {}};
  for (const Piece& piece : pieces) symptoms.pieces.push_back(&piece);
  const auto found = propose_draws(Difference(symptoms));
  return found ? found->pattern + "; " + found->likely : "";
}

bool holds(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

constexpr const char* kOutside = "data-parallel-rng";
constexpr const char* kInside = "model-parallel-rng";

TEST_CASE("draws are told by their name") {
  const Piece piece = piece_on(2, row(kOutside, 7, 0, 4, 1), row(kInside, 2725, 0, 4, 2));
  CHECK(holds(said({piece}, "draw.attention dropout"), "rank 2 drew from stream"));
  CHECK(said({piece}, "drawn").empty());
  CHECK(said({piece}, "grad.draw.x").empty());
}

TEST_CASE("another stream is named, with the one that was due") {
  const std::string text =
      said({piece_on(2, row(kOutside, 7, 0, 4, 1), row(kInside, 2725, 0, 4, 2))});
  CHECK(holds(text, "'data-parallel-rng' (seed 7), due is 'model-parallel-rng' (seed 2725)"));
  CHECK(holds(text, "fork"));
}

TEST_CASE("another seed of the right stream, and whose it is") {
  const Piece first = piece_on(1, row(kInside, 9, 0, 4, 1), row(kInside, 10, 0, 4, 2));
  CHECK_FALSE(holds(said({first}), "another rank's"));
  const Piece second = piece_on(2, row(kInside, 9, 0, 4, 1), row(kInside, 9, 0, 4, 1));
  CHECK(holds(said({first, second}), "of seed 9, due is 10, which another rank's"));
}

TEST_CASE("another place in the right stream, and a generator that moved untold") {
  CHECK(holds(said({piece_on(0, row(kInside, 9, 8, 4, 1), row(kInside, 9, 4, 4, 2))}),
              "from number 8 on, due are 4 from 4 on"));
  CHECK(holds(said({piece_on(0, row(kInside, 9, 4, 4, 1), row(kInside, 9, 4, 4, 2))}),
              "past the tracker"));
  std::vector<double> two = row(kInside, 9, 0, 4, 1), other = two;
  for (const double value : row(kInside, 9, 4, 4, 3)) two.push_back(value);
  for (const double value : row(kInside, 9, 5, 4, 3)) other.push_back(value);
  CHECK(holds(said({piece_on(3, other, two)}), "rank 3 drew 4 numbers"));
}

TEST_CASE("where nothing differs nothing is said") {
  CHECK(said({}).empty());
  CHECK(said({piece_on(0, row(kInside, 9, 4, 4, 1), row(kInside, 9, 4, 4, 1))}).empty());
}

}  // namespace
}  // namespace shardproof::sim::judge
