#include "sim/judge/explain/draws.h"

#include <fmt/format.h>

#include "observe/draw_log.h"

namespace shardproof::sim {
namespace {

// One row of a piece.
struct DrawPair {
  const double* actual;
  const double* golden;
  bool differs(DrawColumn column) const { return actual[column] != golden[column]; }
};

std::string stream_name(double id) {
  for (const char* name : {"data-parallel-rng", "model-parallel-rng", "expert-parallel-rng"}) {
    if (static_cast<double>(stream_id(name)) == id) return fmt::format("'{}'", name);
  }
  return "of another name";
}

// Whether some rank's golden draws begin with this seed.
bool is_seed_of_another(double seed, const std::vector<const Piece*>& pieces) {
  for (const Piece* piece : pieces) {
    for (size_t i = kDrawSeed; i < piece->golden.size(); i += kDrawColumns) {
      if (piece->golden[i] == seed) return true;
    }
  }
  return false;
}

Explanation of_stream(const DrawPair& pair, int64_t rank) {
  return {
      .pattern = fmt::format("rank {} drew from stream {} (seed {:.0f}), due is {} (seed {:.0f})",
                             rank, stream_name(pair.actual[kDrawStream]), pair.actual[kDrawSeed],
                             stream_name(pair.golden[kDrawStream]), pair.golden[kDrawSeed]),
      .likely = "drawn inside a fork what belongs outside of it, or outside what belongs inside"};
}

Explanation of_seed(const DrawPair& pair, int64_t rank, const std::vector<const Piece*>& pieces) {
  const bool anothers = is_seed_of_another(pair.actual[kDrawSeed], pieces);
  return {.pattern = fmt::format("rank {} drew from a stream {} of seed {:.0f}, due is {:.0f}{}",
                                 rank, stream_name(pair.actual[kDrawStream]),
                                 pair.actual[kDrawSeed], pair.golden[kDrawSeed],
                                 anothers ? ", which another rank's stream began with" : ""),
          .likely = "the ranks of an axis seeded alike that must differ, or apart that must agree"};
}

Explanation of_place(const DrawPair& pair, int64_t rank) {
  return {.pattern = fmt::format(
              "rank {} drew {:.0f} numbers of stream {} from number {:.0f} on, due are {:.0f} from "
              "{:.0f} on",
              rank, pair.actual[kDrawCount], stream_name(pair.actual[kDrawStream]),
              pair.actual[kDrawOffset], pair.golden[kDrawCount], pair.golden[kDrawOffset]),
          .likely = "a draw too many or too few before, or streams that were not set back"};
}

Explanation of_state(const DrawPair& pair, int64_t rank) {
  return {.pattern = fmt::format("rank {}: stream {} was elsewhere than its {:.0f} draws say", rank,
                                 stream_name(pair.actual[kDrawStream]), pair.actual[kDrawOffset]),
          .likely = "somebody drew from its generator past the tracker"};
}

Explanation of_pair(const DrawPair& pair, int64_t rank, const std::vector<const Piece*>& pieces) {
  if (pair.differs(kDrawStream)) return of_stream(pair, rank);
  if (pair.differs(kDrawSeed)) return of_seed(pair, rank, pieces);
  if (pair.differs(kDrawOffset) || pair.differs(kDrawCount)) return of_place(pair, rank);
  return of_state(pair, rank);
}

}  // namespace

bool is_draws(const std::string& name) { return name.rfind(kDrawPrefix, 0) == 0; }

Explanation explain_draws(const std::vector<const Piece*>& pieces) {
  for (const Piece* piece : pieces) {
    for (size_t row = 0; row + kDrawColumns <= piece->actual.size(); row += kDrawColumns) {
      const DrawPair pair{piece->actual.data() + row, piece->golden.data() + row};
      for (int64_t column = 0; column < kDrawColumns; ++column) {
        if (pair.actual[column] != pair.golden[column]) return of_pair(pair, piece->rank, pieces);
      }
    }
  }
  return {};
}

}  // namespace shardproof::sim
