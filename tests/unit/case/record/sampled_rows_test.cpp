#include "sim/case/record/sampled_rows.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

namespace shardproof::sim {
namespace {

GoldenFacts facts_of(const std::string& name, Phase phase = Phase::kStep, bool tokens = false) {
  GoldenFacts facts;
  facts.kind = kind_of_name(phase, name);
  facts.name = name;
  facts.phase = phase;
  facts.token_dims = tokens;
  return facts;
}

TEST_CASE("so many different rows are drawn, in order, and all where there are no more",
          "[sampled]") {
  for (const int64_t all : {5, 6, 7, 100, 100000}) {
    const std::vector<int64_t> rows = drawn_rows(facts_of("grad.w"), all, 4, 11);
    REQUIRE(rows.size() == 4);
    CHECK(std::is_sorted(rows.begin(), rows.end()));
    CHECK(std::adjacent_find(rows.begin(), rows.end()) == rows.end());
    CHECK(rows.front() >= 0);
    CHECK(rows.back() < all);
  }
  CHECK(drawn_rows(facts_of("grad.w"), 4, 4, 11).empty());
  CHECK(drawn_rows(facts_of("grad.w"), 1, 4, 11).empty());
  CHECK(drawn_rows(facts_of("grad.w"), 100, 0, 11).empty());
  CHECK(drawn_rows(facts_of("draw.parts"), 100, 4, 11).empty());
}

TEST_CASE("the gradient, state and value of a parameter have the same rows", "[sampled]") {
  const auto rows = drawn_rows(facts_of("param.model.w"), 1000, 4, 3);
  for (const char* kind : {"grad.", "exp_avg.", "exp_avg_sq.", "momentum_buffer.", "refit."}) {
    CHECK(drawn_rows(facts_of(kind + std::string("model.w")), 1000, 4, 3) == rows);
  }
  CHECK(drawn_rows(facts_of("param.model.v"), 1000, 4, 3) != rows);
  CHECK(drawn_rows(facts_of("param.model.w"), 1000, 4, 4) != rows);
}

TEST_CASE("all activations have the same samples", "[sampled]") {
  const auto samples = drawn_samples(1000, 4, 3);
  CHECK(drawn_rows(facts_of("a.output", Phase::kForward, true), 1000, 4, 3) == samples);
  CHECK(drawn_rows(facts_of("b.grad_input", Phase::kBackward, true), 1000, 4, 3) == samples);
  CHECK(drawn_samples(1000, 4, 4) != samples);
}

TEST_CASE("every row is drawn as often as any other", "[sampled]") {
  std::map<int64_t, int> counts;
  constexpr int kSeeds = 4000;
  for (int seed = 0; seed < kSeeds; ++seed) {
    for (const int64_t row : drawn_rows(facts_of("grad.w"), 10, 3, seed)) ++counts[row];
  }
  REQUIRE(counts.size() == 10);
  for (const auto& [row, count] : counts) {
    CHECK(count > 0.3 * kSeeds * 0.88);  // four standard deviations are 0.1
    CHECK(count < 0.3 * kSeeds * 1.12);
  }
}

TEST_CASE("the shape of a sampled tensor and that of the whole one follow from each other",
          "[sampled]") {
  GoldenFacts facts = facts_of("grad.w");
  CHECK(full_shape(facts, {3, 4}) == std::vector<int64_t>{3, 4});
  CHECK(full_shape(facts, {}).empty());
  facts.rows = {2, 7};
  facts.all_rows = 9;
  CHECK(full_shape(facts, {2, 4}) == std::vector<int64_t>{9, 4});
  CHECK(drawn_shape(facts.rows, {9, 4}) == std::vector<int64_t>{2, 4});
  CHECK(drawn_shape({}, {9, 4}) == std::vector<int64_t>{9, 4});
}

}  // namespace
}  // namespace shardproof::sim
