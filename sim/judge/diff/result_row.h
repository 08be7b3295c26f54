// The judgement of one observation of one rank: what travels from a rank to the launcher.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "observe/probe.h"
#include "sim/judge/diff/evidence.h"
#include "sim/judge/diff/outcome.h"

namespace shardproof::sim {

struct ResultRow {
  // Whoever makes a row says what became of the comparison: there is no default.
  explicit ResultRow(Outcome outcome) : outcome(outcome) {}
  bool is_wrong() const { return outcome == Outcome::kMismatch || outcome == Outcome::kMissing; }

  Outcome outcome;
  std::string reason;  // of kNotJudged and kUnresolved: why, as a clause
  std::string name;
  Phase phase = Phase::kForward;
  int64_t step = 0;
  int64_t microbatch = 0;
  int64_t rank = 0;
  int64_t order = -1;          // the golden's; -1: the golden has no such tensor
  bool rounding_only = false;  // wrong by the lower precision's allowance, dtype below float64
  int64_t count = 0;           // elements of the golden that the rank holds
  int64_t judged = 0;          // of them, those that were compared
  int64_t padding = 0;         // elements that it holds and the golden does not have
  int64_t bad_count = 0;
  double worst_ratio = 0;  // largest error / allowance
  double worst_error = 0;  // |actual - golden| there
  double golden_value = 0;
  double actual_value = 0;
  double allowance = 0;  // there
  double golden_scale = 0;
  std::vector<int64_t> worst_global_index;
  std::vector<int64_t> worst_local_index;
  std::vector<int64_t> global_shape, local_shape;
  // The best single factor: actual = factor * golden over this rank's elements, and the relative
  // residual |actual - factor*golden| / |actual| that it leaves.
  double factor = 1;
  double factor_residual = 0;
  std::string dtype;
  std::string layout;             // "S(0)tp"; "" replicated
  std::vector<int64_t> replicas;  // ranks that must hold an equal copy, this one included
  bool redundant = false;
  uint64_t digest = 0;       // of the local bytes
  std::string problem;       // not in the golden, wrong shape, wrong dtype, ...: a mismatch then
  int64_t calls_before = 0;  // collective calls this rank had made when it was observed
  bool partial = false;      // one addend over partial_axes: kAddend until all are summed
  std::vector<std::string> partial_axes;
  uint64_t tokens = 0;  // digest of the token map; only equal ones can be replicas. 0: no tokens
  bool compares_replicas = true;  // false: nothing but padding, whose content is nobody's business
  // Which golden elements this row covered, as a sum of hashes that adds up over disjoint shards to
  // that of the whole tensor; both 0 where coverage is not demanded (activations).
  uint64_t covered = 0, coverage_of_all = 0;
  std::vector<Evidence> evidence;  // what the rank found out about it when it was wrong
};

// A rank's local tensor beside the golden's values, kept for what failed first and for addends.
//
// `dims` are the golden's dims, the two token dims made one; element [i, j, ..] in row-major order
// of `dims` lies at dims[0][i] * strides[0] + dims[1][j] * strides[1] + .. in the golden; index -1
// is padding.
struct Piece {
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
  std::vector<double> actual = {}, golden = {};  // golden: times the declared scale
  double allowance = 0;                          // of every element
};

// A golden tensor that a rank did not observe.
struct Unobserved {
  int64_t order = -1;
  Phase phase = Phase::kForward;
  int64_t step = 0;
  std::string name;
  std::vector<int64_t> global_shape;
  std::optional<Excuse> excuse = {};  // nobody has to observe it
};

// As JSON for results.json; numbers that JSON cannot hold are the texts "nan", "inf", "-inf".
nlohmann::json to_json(const ResultRow& row);

// What one rank sends when it has finished a case.
struct RankReport {
  int64_t rank = 0;
  std::vector<ResultRow> rows;  // in the order observed
  std::vector<std::string>
      calls;  // "all_reduce(sum) tp[0,1] [4,16,32] float64 '<label>'", in order
  // How many of them by axis (the name of their group) and op: {"tp", "all_reduce"}.
  std::map<std::pair<std::string, std::string>, int64_t> call_counts;
  std::vector<nlohmann::json> timeline;  // {"name","start_us","duration_us","kind"} wall time
  nlohmann::json metrics = nlohmann::json::object();  // loss, grad_norm, ...
  std::vector<std::string> findings;                  // calls that were never waited for
  std::vector<std::string> warnings;                  // sentences: odd, but no verdict of the case
  int64_t peak_tensor_bytes = 0;
  double seconds = 0, compare_seconds = 0;
  std::vector<Piece> pieces;           // of the first failing tensors, and of addends
  std::vector<Unobserved> unobserved;  // golden tensors that this rank never observed
};
// CBOR; rows that match travel in a short form without shapes, indices and worst values.
std::string encode(const RankReport& report);
// Throws InternalError when the bytes are not what encode() made.
RankReport decode_rank_report(const std::string& bytes);

}  // namespace shardproof::sim
