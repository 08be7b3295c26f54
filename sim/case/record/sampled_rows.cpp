#include "sim/case/record/sampled_rows.h"

#include <set>

#include "base/seed.h"

namespace shardproof::sim {
namespace {

// `count` of the numbers below `all`, each set with the same probability (Floyd's algorithm:
// Bentley and Floyd, "A sample of brilliance", CACM 30(9), 1987).
std::vector<int64_t> drawn(int64_t all, int64_t count, uint64_t seed) {
  if (count <= 0 || all <= count) return {};
  std::set<int64_t> rows;
  for (int64_t last = all - count; last < all; ++last) {
    const uint64_t bits = mix_bits(seed + static_cast<uint64_t>(last));
    const auto row = static_cast<int64_t>(bits % static_cast<uint64_t>(last + 1));
    rows.insert(rows.contains(row) ? last : row);
  }
  return {rows.begin(), rows.end()};
}

}  // namespace

std::vector<int64_t> drawn_rows(const GoldenFacts& facts, int64_t all, int64_t count,
                                int64_t seed) {
  if (facts.token_dims) return drawn_samples(all, count, seed);
  if (facts.kind == ObservationKind::kDraw) return {};  // a few numbers of each random stream
  const bool of_parameter = facts.phase == Phase::kStep;
  const std::string of = of_parameter ? parameter_of(facts.kind, facts.name) : facts.name;
  return drawn(all, count, stream_seed(seed, "rows of " + of));
}

std::vector<int64_t> drawn_samples(int64_t all, int64_t count, int64_t seed) {
  return drawn(all, count, stream_seed(seed, "compared samples"));
}

std::vector<int64_t> full_shape(const GoldenFacts& facts, std::vector<int64_t> shape) {
  if (!facts.rows.empty()) shape.at(0) = facts.all_rows;
  return shape;
}

std::vector<int64_t> drawn_shape(const std::vector<int64_t>& rows, std::vector<int64_t> shape) {
  if (!rows.empty()) shape.at(0) = static_cast<int64_t>(rows.size());
  return shape;
}

}  // namespace shardproof::sim
