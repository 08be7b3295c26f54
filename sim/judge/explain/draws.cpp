// Draws of random numbers that differ from the expected ones.
#include <fmt/format.h>

#include <algorithm>

#include "observe/draw_columns.h"
#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
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
bool is_seed_of_another(double seed, const Pieces& pieces) {
  for (const Piece* piece : pieces) {
    for (size_t i = kDrawSeed; i < piece->golden.size(); i += kDrawColumns) {
      if (piece->golden[i] == seed) return true;
    }
  }
  return false;
}

Proposal of_stream(const DrawPair& pair) {
  return {
      .pattern = fmt::format("drew from stream {} (seed {:.0f}), due is {} (seed {:.0f})",
                             stream_name(pair.actual[kDrawStream]), pair.actual[kDrawSeed],
                             stream_name(pair.golden[kDrawStream]), pair.golden[kDrawSeed]),
      .likely = "drawn inside a fork what belongs outside of it, or outside what belongs inside"};
}

Proposal of_seed(const DrawPair& pair, const Pieces& pieces) {
  const bool anothers = is_seed_of_another(pair.actual[kDrawSeed], pieces);
  return {.pattern = fmt::format("drew from a stream {} of seed {:.0f}, due is {:.0f}{}",
                                 stream_name(pair.actual[kDrawStream]), pair.actual[kDrawSeed],
                                 pair.golden[kDrawSeed],
                                 anothers ? ", which another rank's stream began with" : ""),
          .likely =
              "the ranks of an axis have equal seeds where they must differ, or different ones "
              "where they must agree"};
}

Proposal of_place(const DrawPair& pair) {
  return {.pattern = fmt::format("drew {:.0f} numbers of stream {} from number {:.0f} on, due are "
                                 "{:.0f} from {:.0f} on",
                                 pair.actual[kDrawCount], stream_name(pair.actual[kDrawStream]),
                                 pair.actual[kDrawOffset], pair.golden[kDrawCount],
                                 pair.golden[kDrawOffset]),
          .likely = "a draw too many or too few before, or streams that were not set back"};
}

Proposal of_state(const DrawPair& pair) {
  return {.pattern = fmt::format("had stream {} elsewhere than its {:.0f} draws say",
                                 stream_name(pair.actual[kDrawStream]), pair.actual[kDrawOffset]),
          .likely = "somebody drew from its generator past the tracker"};
}

Proposal of_pair(const DrawPair& pair, const Pieces& pieces) {
  if (pair.differs(kDrawStream)) return of_stream(pair);
  if (pair.differs(kDrawSeed)) return of_seed(pair, pieces);
  if (pair.differs(kDrawOffset) || pair.differs(kDrawCount)) return of_place(pair);
  return of_state(pair);
}

}  // namespace

std::optional<Proposal> propose_draws(const Difference& difference) {
  if (difference.wrong.front()->kind != ObservationKind::kDraw) return std::nullopt;
  const Pieces& pieces = difference.symptoms.pieces;
  for (const Piece* piece : pieces) {
    for (size_t row = 0; row + kDrawColumns <= piece->actual.size(); row += kDrawColumns) {
      const DrawPair pair{piece->actual.data() + row, piece->golden.data() + row};
      if (std::equal(pair.actual, pair.actual + kDrawColumns, pair.golden)) continue;
      Proposal found = of_pair(pair, pieces);
      found.pattern = fmt::format("rank {} {}", piece->rank, found.pattern);
      found.names_ranks = true;
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace shardproof::sim::judge
