#include "sim/judge/diff/result_row.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

using namespace shardproof::sim::judge;

namespace {

ResultRow row_with(Outcome outcome, double ratio, const std::string& problem = "") {
  ResultRow row(outcome);
  row.worst_ratio = ratio;
  row.problem = problem;
  return row;
}

// The place of the worst.
size_t worst_of(const std::vector<ResultRow>& rows) {
  std::vector<const ResultRow*> pointers;
  for (const ResultRow& row : rows) pointers.push_back(&row);
  return static_cast<size_t>(&worst_row(pointers) - rows.data());
}

}  // namespace

TEST_CASE("the worst row is the farthest from a match", "[judge]") {
  using enum Outcome;
  CHECK(worst_of({row_with(kMatch, 0.9), row_with(kUnresolved, 0), row_with(kNotJudged, 0),
                  row_with(kMismatch, 0)}) == 3);
  CHECK(worst_of({row_with(kMatch, 0.9), row_with(kUnresolved, 0), row_with(kNotJudged, 0)}) == 2);
  CHECK(worst_of({row_with(kMatch, 0.9), row_with(kUnresolved, 0)}) == 1);
  CHECK(worst_of({row_with(kMismatch, 9), row_with(kMissing, 0, "not observed")}) == 1);
  CHECK(worst_of({row_with(kMismatch, 9), row_with(kMismatch, NAN), row_with(kMismatch, 3)}) == 1);
  CHECK(worst_of({row_with(kMismatch, 3), row_with(kMismatch, 9), row_with(kMismatch, 7)}) == 1);
}

TEST_CASE("of rows whose ratios differ by roundings the first is the worst", "[judge]") {
  const auto wrong = [](double ratio) { return row_with(Outcome::kMismatch, ratio); };
  CHECK(worst_of({wrong(5), wrong(5 * (1 + 1e-15)), wrong(5)}) == 0);
  // The second is within 1e-9 of the largest, and the first is not.
  CHECK(worst_of({wrong(5), wrong(5 * (1 + 0.9e-9)), wrong(5 * (1 + 1.8e-9))}) == 1);
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(worst_of({wrong(5), wrong(infinity), wrong(infinity)}) == 1);
}
