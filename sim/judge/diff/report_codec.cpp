// A rank's report as CBOR:
//
//   [version, rank, [row ..], [call ..], [axis, op, count, ..], timeline, metrics, [finding ..],
//    [warning ..], peak bytes, seconds, compare seconds, [piece ..], [unobserved ..]]
//
// A row that matches has kShortFields fields, any other one kLongFields more. Timeline and metrics
// are CBOR within a byte string. Dtypes, layouts, calls and lists of replicas are entries of a
// table: an integer refers to an earlier entry, anything else is a new one.
#include <algorithm>

#include "base/error.h"
#include "sim/judge/diff/cbor.h"
#include "sim/judge/diff/report_tables.h"
#include "sim/judge/diff/result_row.h"

namespace shardproof::sim {
namespace {

constexpr int64_t kVersion = 5;
constexpr size_t kShortFields = 21, kLongFields = 15;

enum Flags : uint64_t { kRedundant = 1, kPartial = 2, kReplicas = 4, kRounding = 8 };

uint64_t flags_of(const ResultRow& row) {
  const auto flag = [](bool on, uint64_t bit) { return on ? bit : 0; };
  return flag(row.redundant, kRedundant) | flag(row.partial, kPartial) |
         flag(row.compares_replicas, kReplicas) | flag(row.rounding_only, kRounding);
}

bool is_short(const ResultRow& row) {
  return row.outcome == Outcome::kMatch && row.count > 0 && !row.partial && row.evidence.empty() &&
         row.problem.empty();
}

// The fields of any kind of evidence, as [kind, two numbers, a share, a name].
struct FlatEvidence {
  int64_t first = 0, second = 0;
  double share = 0;
  std::string name = {};
};

FlatEvidence flat(const EqualsStep& found) { return {found.step, found.is_later}; }
FlatEvidence flat(const PartEqualsStep& found) { return {found.step}; }
FlatEvidence flat(const SumOfSteps& found) { return {found.before, found.now}; }
FlatEvidence flat(const ShareOfUpdate& found) { return {.share = found.share}; }
FlatEvidence flat(const EqualsTensor& found) { return {.name = found.name}; }
FlatEvidence flat(const ValuesOf& found) { return {.name = found.dtype}; }
FlatEvidence flat(const AddendsThrough& found) { return {.name = found.dtype}; }

void put_evidence(CborWriter& out, const Evidence& evidence) {
  const FlatEvidence fields = std::visit([](const auto& found) { return flat(found); }, evidence);
  out.array(5);
  out.natural(evidence.index());
  out.integer(fields.first);
  out.integer(fields.second);
  out.number(fields.share);
  out.text(fields.name);
}

Evidence take_evidence(CborReader& in) {
  in.array(5);
  const uint64_t kind = in.natural();
  const int64_t first = in.integer(), second = in.integer();
  const double share = in.number();
  const std::string name = in.text();
  switch (kind) {
    case 0:
      return EqualsStep{first, second != 0};
    case 1:
      return PartEqualsStep{first};
    case 2:
      return SumOfSteps{first, second};
    case 3:
      return ShareOfUpdate{share};
    case 4:
      return EqualsTensor{name};
    case 5:
      return ValuesOf{name};
    case 6:
      return AddendsThrough{name};
    default:
      throw InternalError("a rank's report is damaged: evidence of an unknown kind");
  }
}

void put_row(CborWriter& out, Tables& tables, const ResultRow& row) {
  out.array(is_short(row) ? kShortFields : kShortFields + kLongFields);
  out.text(row.name);
  out.integer(static_cast<int64_t>(row.phase));
  out.integer(row.step);
  out.integer(row.microbatch);
  out.integer(row.order);
  out.integer(static_cast<int64_t>(row.outcome));
  out.natural(flags_of(row));
  out.integer(row.count);
  out.integer(row.judged);
  out.integer(row.padding);
  out.integer(row.undrawn);
  out.number(row.worst_ratio);
  out.number(row.worst_error);
  out.number(row.golden_scale);
  tables.texts.put(out, row.dtype);
  tables.texts.put(out, row.layout);
  tables.lists.put(out, row.replicas);
  out.natural(row.digest);
  out.integer(row.calls_before);
  out.natural(row.tokens);
  out.array(row.coverage_of_all == 0 ? 0 : 2);
  if (row.coverage_of_all != 0) {
    out.natural(row.covered);
    out.natural(row.coverage_of_all);
  }
  if (is_short(row)) return;
  out.text(row.reason);
  out.integer(row.bad_count);
  out.number(row.golden_value);
  out.number(row.actual_value);
  out.number(row.allowance);
  out.integers(row.worst_global_index);
  out.integers(row.worst_local_index);
  out.integers(row.global_shape);
  out.integers(row.local_shape);
  out.number(row.factor);
  out.number(row.factor_residual);
  out.text(row.problem);
  out.texts(row.partial_axes);
  out.array(row.evidence.size());
  for (const Evidence& evidence : row.evidence) put_evidence(out, evidence);
  out.integer(row.rank);
}

Phase take_phase(CborReader& in) {
  const int64_t phase = in.integer();
  if (phase < 0 || phase > static_cast<int64_t>(Phase::kStep)) {
    throw InternalError("a rank's report is damaged: an unknown phase");
  }
  return static_cast<Phase>(phase);
}

Outcome take_outcome(CborReader& in) {
  const int64_t outcome = in.integer();
  if (outcome < 0 || outcome > static_cast<int64_t>(Outcome::kMissing)) {
    throw InternalError("a rank's report is damaged: an unknown outcome");
  }
  return static_cast<Outcome>(outcome);
}

std::optional<Excuse> take_excuse(CborReader& in) {
  const int64_t excuse = in.integer();
  if (excuse < -1 || excuse > static_cast<int64_t>(Excuse::kNotDrawn)) {
    throw InternalError("a rank's report is damaged: an unknown excuse");
  }
  if (excuse < 0) return std::nullopt;
  return static_cast<Excuse>(excuse);
}

ResultRow take_row(CborReader& in, Tables& tables, int64_t rank) {
  const size_t fields = in.array();
  ResultRow row(Outcome::kNotJudged);
  row.rank = rank;
  row.name = in.text();
  row.phase = take_phase(in);
  row.step = in.integer();
  row.microbatch = in.integer();
  row.order = in.integer();
  row.outcome = take_outcome(in);
  const uint64_t flags = in.natural();
  row.redundant = flags & kRedundant;
  row.partial = flags & kPartial;
  row.compares_replicas = flags & kReplicas;
  row.rounding_only = flags & kRounding;
  row.count = in.integer();
  row.judged = in.integer();
  row.padding = in.integer();
  row.undrawn = in.integer();
  row.worst_ratio = in.number();
  row.worst_error = in.number();
  row.golden_scale = in.number();
  row.dtype = tables.texts.take(in);
  row.layout = tables.texts.take(in);
  row.replicas = tables.lists.take(in);
  row.digest = in.natural();
  row.calls_before = in.integer();
  row.tokens = in.natural();
  if (in.array() == 2) {
    row.covered = in.natural();
    row.coverage_of_all = in.natural();
  }
  if (fields == kShortFields) return row;
  row.reason = in.text();
  row.bad_count = in.integer();
  row.golden_value = in.number();
  row.actual_value = in.number();
  row.allowance = in.number();
  row.worst_global_index = in.integers();
  row.worst_local_index = in.integers();
  row.global_shape = in.integers();
  row.local_shape = in.integers();
  row.factor = in.number();
  row.factor_residual = in.number();
  row.problem = in.text();
  row.partial_axes = in.texts();
  const size_t evidence = in.array();
  for (size_t i = 0; i < evidence; ++i) row.evidence.push_back(take_evidence(in));
  row.rank = in.integer();
  return row;
}

void put_piece(CborWriter& out, const Piece& piece) {
  out.array(15);
  out.text(piece.name);
  out.integer(static_cast<int64_t>(piece.phase));
  out.integer(piece.step);
  out.integer(piece.microbatch);
  out.integer(piece.rank);
  out.integer(piece.order);
  out.boolean(piece.partial);
  out.texts(piece.partial_axes);
  out.integers(piece.global_shape);
  out.array(piece.dims.size());
  for (const auto& indices : piece.dims) out.integers(indices);
  out.integers(piece.strides);
  out.numbers(piece.actual);
  out.numbers(piece.golden);
  out.number(piece.allowance);
  out.integers(piece.drawn);
}

// Throws when the fields of a piece contradict each other: the judge indexes by them.
void check_piece(const Piece& piece) {
  const auto demand = [](bool whole) {
    if (!whole)
      throw InternalError("a rank's report is damaged: a piece that does not fit together");
  };
  uint64_t full = 1;
  for (const int64_t size : piece.global_shape) {
    demand(size >= 0 && (size == 0 || full < (1ULL << 48) / static_cast<uint64_t>(size)));
    full *= static_cast<uint64_t>(size);
  }
  demand(piece.strides.size() == piece.dims.size());
  demand(piece.drawn.empty() ||
         (!piece.global_shape.empty() && std::ssize(piece.drawn) == piece.global_shape.front()));
  uint64_t count = 1;
  uint64_t reach = 0;
  for (size_t d = 0; d < piece.dims.size(); ++d) {
    count *= piece.dims[d].size();
    demand(count <= piece.actual.size() || count == 0);
    int64_t largest = 0;
    for (const int64_t index : piece.dims[d]) {
      demand(index >= -1 && index < (int64_t{1} << 40));
      largest = std::max(largest, index);
    }
    demand(piece.strides[d] >= 0 && piece.strides[d] < (int64_t{1} << 40) &&
           (largest == 0 || piece.strides[d] <= (int64_t{1} << 60) / largest));
    reach += static_cast<uint64_t>(largest * piece.strides[d]);
  }
  demand(count == piece.actual.size() && count == piece.golden.size() &&
         (count == 0 || reach < full));
}

Piece take_piece(CborReader& in) {
  in.array(15);
  Piece piece;
  piece.name = in.text();
  piece.phase = take_phase(in);
  piece.step = in.integer();
  piece.microbatch = in.integer();
  piece.rank = in.integer();
  piece.order = in.integer();
  piece.partial = in.boolean();
  piece.partial_axes = in.texts();
  piece.global_shape = in.integers();
  piece.dims.resize(in.array());
  for (auto& indices : piece.dims) indices = in.integers();
  piece.strides = in.integers();
  piece.actual = in.numbers();
  piece.golden = in.numbers();
  piece.allowance = in.number();
  piece.drawn = in.integers();
  check_piece(piece);
  return piece;
}

void put_json(CborWriter& out, const nlohmann::json& json) {
  const std::vector<uint8_t> bytes = nlohmann::json::to_cbor(json);
  out.bytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

nlohmann::json take_json(CborReader& in) {
  try {
    return nlohmann::json::from_cbor(in.bytes());
  } catch (const nlohmann::json::exception&) {
    throw InternalError("a rank's report is damaged: its timeline or metrics");
  }
}

}  // namespace

std::string encode(const RankReport& report) {
  CborWriter out;
  Tables tables;
  out.array(13);
  out.integer(kVersion);
  out.integer(report.rank);
  out.array(report.rows.size());
  for (const ResultRow& row : report.rows) put_row(out, tables, row);
  out.array(report.calls.size());
  for (const std::string& call : report.calls) tables.texts.put(out, call);
  out.array(3 * report.call_counts.size());
  for (const auto& [of, count] : report.call_counts) {
    out.text(of.first);
    out.text(of.second);
    out.integer(count);
  }
  put_json(out, report.timeline);
  put_json(out, report.metrics);
  out.texts(report.warnings);
  out.integer(report.peak_tensor_bytes);
  out.number(report.seconds);
  out.number(report.compare_seconds);
  out.array(report.pieces.size());
  for (const Piece& piece : report.pieces) put_piece(out, piece);
  out.array(report.unobserved.size());
  for (const Unobserved& missing : report.unobserved) {
    out.array(6);
    out.integer(missing.order);
    out.integer(static_cast<int64_t>(missing.phase));
    out.integer(missing.step);
    out.text(missing.name);
    out.integers(missing.global_shape);
    out.integer(missing.excuse ? static_cast<int64_t>(*missing.excuse) : -1);
  }
  return out.take();
}

RankReport decode_rank_report(const std::string& bytes) {
  CborReader in(bytes);
  Tables tables;
  in.array(13);
  if (in.integer() != kVersion) throw InternalError("a rank's report of another version");
  RankReport report;
  report.rank = in.integer();
  const size_t rows = in.array();
  report.rows.reserve(rows);
  for (size_t i = 0; i < rows; ++i) report.rows.push_back(take_row(in, tables, report.rank));
  report.calls.resize(in.array());
  for (std::string& call : report.calls) call = tables.texts.take(in);
  for (size_t left = in.array(); left >= 3; left -= 3) {
    const std::string axis = in.text(), op = in.text();
    report.call_counts[{axis, op}] = in.integer();
  }
  report.timeline = take_json(in).get<std::vector<nlohmann::json>>();
  report.metrics = take_json(in);
  report.warnings = in.texts();
  report.peak_tensor_bytes = in.integer();
  report.seconds = in.number();
  report.compare_seconds = in.number();
  report.pieces.resize(in.array());
  for (Piece& piece : report.pieces) piece = take_piece(in);
  report.unobserved.resize(in.array());
  for (Unobserved& missing : report.unobserved) {
    in.array(6);
    missing.order = in.integer();
    missing.phase = take_phase(in);
    missing.step = in.integer();
    missing.name = in.text();
    missing.global_shape = in.integers();
    missing.excuse = take_excuse(in);
  }
  if (!in.empty()) throw InternalError("a rank's report is damaged: bytes follow its end");
  return report;
}

}  // namespace shardproof::sim
