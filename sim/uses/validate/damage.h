// What happened to elements that arrived wrong: the pattern of their positions, and whose data they
// were.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/uses/validate/codes.h"

namespace shardproof::sim::validate {

// As hardware and software damage buffers. A sector is 32 aligned bytes of the buffer, a lane every
// n-th element, a run any neighbours.
enum class Shape { kElement, kSector, kLane, kRun, kAll, kScattered };
constexpr std::array<const char*, 6> names_of(Shape) {
  return {"element", "sector", "lane", "run", "all", "scattered"};
}

struct WrongPattern {
  Shape shape = Shape::kScattered;
  int64_t first = 0;   // position
  int64_t stride = 1;  // lane: from one wrong element to the next
  int64_t wrong = 0, count = 0;
  int64_t bytes = 0;         // of an element
  std::string text() const;  // "every 32nd element from 5 (lane 5 of 32)"
};

// `positions` ascend and are not empty; the buffer has `count` elements of `element_bytes`.
WrongPattern pattern_of(const std::vector<int64_t>& positions, int64_t count,
                        int64_t element_bytes);

struct WrongElement {
  int64_t position = 0;
  int64_t expected = 0;
  double received = 0;  // may be no integer, infinite or NaN
};

enum class Damage { kLost, kDoubled, kStale, kMisplaced, kForeign, kAltered };
constexpr std::array<const char*, 6> names_of(Damage) {
  return {"lost", "doubled", "stale", "misplaced", "foreign", "altered"};
}

struct Source {
  Damage damage = Damage::kAltered;
  std::vector<int64_t> ranks = {};  // whose data; several: the codes cannot tell; []: unknown
  std::string text = {};            // "rank 3's elements were 7 places further on"
};

// Elements that `sender` sent, in a buffer of `count` of its elements; `world_size` ranks could
// have sent others instead.
Source source_of_moved(const CodeKey& key, int64_t sender, int64_t count, int64_t world_size,
                       const std::vector<WrongElement>& wrong);

// Elements of a reduction over these ranks. The source is that whose damage explains every element.
Source source_of_reduced(const CodeKey& key, ReduceOp op, const std::vector<int64_t>& ranks,
                         int64_t count, const std::vector<WrongElement>& wrong);

}  // namespace shardproof::sim::validate
