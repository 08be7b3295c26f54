// The comparison of one observation of one rank, as the rank sends it to the launcher.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "observe/observation_kind.h"
#include "observe/phase.h"
#include "sim/case/stretch.h"
#include "sim/judge/diff/evidence.h"
#include "sim/judge/diff/outcome.h"
#include "sim/judge/diff/rank_list.h"

namespace shardproof::sim::judge {

// Wrong ratios within this factor of each other are equal but for roundings, which other processors
// do otherwise. The first of them is named.
inline constexpr double kEqualRatios = 1 + 1e-9;

struct ResultRow {
  // There is no default outcome: the maker of a row must state it.
  explicit ResultRow(Outcome outcome) : outcome(outcome) {}
  bool is_wrong() const { return outcome == Outcome::kMismatch || outcome == Outcome::kMissing; }

  Outcome outcome;
  std::string reason;  // a clause that says why, for kNotJudged and kUnresolved
  ObservationKind kind = ObservationKind::kUnknown;
  std::string name;
  Phase phase = Phase::kForward;
  int64_t step = 0;
  int64_t microbatch = 0;
  int64_t rank = 0;
  int64_t order = -1;          // the golden's order; -1: the golden has no such tensor
  bool rounding_only = false;  // wrong, or an addend, by the allowance of a precision below float64
  int64_t count = 0;           // elements of the golden that the rank holds
  int64_t judged = 0;          // those of `count` that were compared
  int64_t padding = 0;         // elements of the rank that the golden does not have
  int64_t undrawn = 0;         // elements of the rank in rows that the case does not sample
  int64_t bad_count = 0;
  double worst_ratio = 0;  // largest error / allowance
  double worst_error = 0;  // |actual - golden| of that element
  double golden_value = 0;
  double actual_value = 0;
  double allowance = 0;  // of that element
  double golden_scale = 0;
  std::vector<int64_t> worst_global_index;
  std::vector<int64_t> worst_local_index;
  std::vector<int64_t> global_shape, local_shape;
  // The best single factor: actual = factor * golden over this rank's elements, and the relative
  // residual |actual - factor * golden| / |actual|.
  double factor = 1;
  double factor_residual = 0;
  std::string dtype;
  std::string layout;   // "S(0)tp"; "" for replicated
  std::string site;     // of a wrong boundary: "received by stage 2 (chunk 1)"
  RankList replicas;    // ranks that must hold an equal copy, including this one
  uint64_t digest = 0;  // of the local bytes
  std::string problem;  // unknown to the golden, wrong shape, wrong dtype, ...: then a mismatch
  int64_t calls_before = 0;  // collective calls that this rank had made when it was observed
  bool partial = false;      // one addend over partial_axes: kAddend until all are summed
  std::vector<std::string> partial_axes;
  uint64_t tokens = 0;            // digest of the token map, equal for replicas; 0: no tokens
  bool compares_replicas = true;  // false: only padding, whose content is unspecified
  // The golden elements that this row covered, as a sum of hashes: over disjoint shards it adds up
  // to `coverage_of_all`. Both are 0 for tensors with tokens: each rank has to observe those in
  // each microbatch.
  uint64_t covered = 0, coverage_of_all = 0;
  std::vector<Evidence> evidence;  // facts that the rank found about a wrong row
};

// The row that is farthest from a match: wrong, else not judged, else unresolved; of these one that
// says why, then the largest ratio, NaN above all. Of ratios within kEqualRatios the first. `rows`
// has at least one.
const ResultRow& worst_row(const std::vector<const ResultRow*>& rows);

// A rank's local tensor beside the golden values, kept for the first failures and for addends.
//
// `dims` are the golden's dims, with the two token dims merged. Element [i, j, ..] in row-major
// order of `dims` lies at dims[0][i] * strides[0] + dims[1][j] * strides[1] + .. in the golden;
// index -1 is padding. Where the golden has only some rows of dim 0, it is as small as they are.
struct Piece {
  ObservationKind kind = ObservationKind::kUnknown;
  std::string name;
  Phase phase = Phase::kForward;
  int64_t step = 0;
  int64_t microbatch = 0;
  int64_t rank = 0;
  int64_t order = -1;
  bool partial = false;
  std::vector<std::string> partial_axes;
  std::vector<int64_t> global_shape;
  std::vector<std::vector<int64_t>> dims;
  std::vector<int64_t> strides;
  std::vector<double> actual = {}, golden = {};  // `golden` includes the declared scale
  double allowance = 0;                          // of every element
  double allowance_of_few = -1;                  // of an addend (sim/judge/evidence/row_judge.h)
  std::vector<int64_t> drawn = {};               // the golden's rows of dim 0; empty: all
};

// A golden tensor that a rank did not observe, or not in each microbatch of its step.
struct Unobserved {
  int64_t order = -1;
  Phase phase = Phase::kForward;
  int64_t step = 0;
  ObservationKind kind = ObservationKind::kUnknown;
  std::string name;
  std::vector<int64_t> global_shape;
  std::optional<Excuse> excuse = {};       // set when the rank need not observe it
  std::vector<int64_t> microbatches = {};  // in which it was not observed; empty: in none at all
};

// JSON for results.json. Non-finite numbers become the texts "nan", "inf" and "-inf".
nlohmann::json to_json(const ResultRow& row);

// Which of the golden's tensors a rank holds a part of.
enum class Holds {
  kWhatItSays,  // only the rank knows: what it does not observe it need not hold
  kEverything,  // a rank of a model's mesh: each slot and parameter, in each of its microbatches;
                // of a registered workload: each output and gradient, since it returned one
  kRefits,      // a rank outside of the mesh: the weights that a policy sends it
};

// The report that a rank sends when it has finished a case.
struct RankReport {
  int64_t rank = 0;
  Holds holds = Holds::kWhatItSays;
  std::vector<ResultRow> rows;  // in the order observed
  // "all_reduce(sum) tp[0,1] [4,16,32] float64 '<label>'", in order
  std::vector<std::string> calls;
  // The number of calls by axis (the name of the group) and op: {"tp", "all_reduce"}.
  std::map<std::pair<std::string, std::string>, int64_t> call_counts;
  std::vector<Stretch> timeline;
  nlohmann::json metrics = nlohmann::json::object();  // loss, grad_norm, ...
  std::vector<std::string> warnings;                  // sentences that do not affect the verdict
  int64_t scored_tokens = -1;                         // of the golden; -1: it does not say
  int64_t peak_tensor_bytes = 0;
  double seconds = 0, compare_seconds = 0;
  std::vector<Piece> pieces;           // of the first failing tensors, and addends
  std::vector<Unobserved> unobserved;  // golden tensors that this rank did not observe
  // The samples of each microbatch of step 1 whose logprobs the rank observed.
  std::vector<std::vector<int64_t>> microbatch_samples;
};
// Encodes as CBOR; rows that match travel in a short form without shapes, indices and worst values.
std::string encode(const RankReport& report);
// Throws InternalError when encode() did not make the bytes.
RankReport decode_rank_report(const std::string& bytes);

// The order in which divergences count: by step; within a step forward, recomputed, backward, step;
// within a phase in the order in which the golden ran.
using GoldenPosition = std::tuple<int64_t, int64_t, int64_t>;

inline GoldenPosition golden_position(int64_t step, Phase phase, int64_t order) {
  constexpr std::array kOrder = {Phase::kForward, Phase::kRecompute, Phase::kBackward,
                                 Phase::kStep};
  return {step, std::find(kOrder.begin(), kOrder.end(), phase) - kOrder.begin(), order};
}

}  // namespace shardproof::sim::judge
