// A rank's report as CBOR:
//
//   [version, rank, holds, [row ..], [call ..], [axis, op, count, ..], [stretch ..], metrics,
//    [finding ..], [warning ..], scored tokens, peak bytes, seconds, compare seconds, [piece ..],
//    [unobserved ..], [[sample ..] ..]]
//
// A row that matches has kShortFields fields, any other one kLongFields more. Metrics are CBOR
// within a byte string. Dtypes, layouts, calls and lists of replicas are entries of a
// table: an integer refers to an earlier entry, anything else is a new one.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "sim/case/cbor.h"
#include "sim/judge/diff/result_row.h"

namespace shardproof::sim::judge {
namespace {

constexpr int64_t kVersion = 12;
constexpr size_t kShortFields = 23, kLongFields = 15;

bool is_short(const ResultRow& row) {
  return row.outcome == Outcome::kMatch && row.count > 0 && !row.partial && row.evidence.empty() &&
         row.problem.empty();
}

void demand(bool whole, const char* lack) {
  if (!whole) throw InternalError(std::string("a rank's report is damaged: ") + lack);
}

// Values that repeat in a rank's report travel once; after that their numbers do.
void table_value(CborWriter& out, const std::string& text) { out(text); }
void table_value(CborReader& in, std::string& text) { in(text); }
void table_value(CborWriter& out, const RankList& list) { out(list.ranks()); }
void table_value(CborReader& in, RankList& list) {
  std::vector<int64_t> ranks;
  in(ranks);
  list = ranks;
}

template <class Value>
class Table {
 public:
  void field(CborWriter& out, const Value& value) {
    const auto [place, fresh] = numbers_.emplace(value, static_cast<int64_t>(numbers_.size()));
    fresh ? table_value(out, value) : out(place->second);
  }
  void field(CborReader& in, Value& value) {
    if (!in.integer_is_next()) {
      table_value(in, value);
      values_.push_back(value);
      return;
    }
    int64_t number = 0;
    in(number);
    if (number < 0 || number >= static_cast<int64_t>(values_.size())) {
      throw InternalError("a rank's report is damaged: an unknown number of a table");
    }
    value = values_[static_cast<size_t>(number)];
  }

 private:
  std::map<Value, int64_t> numbers_;
  std::vector<Value> values_;
};

struct Tables {
  Table<std::string> texts;
  Table<RankList> lists;
};

// The functions below write or read the fields of a record; one that is written is const.
template <class Codec, class Found>
void found_fields(Codec& codec, Found& found) {
  using Kind = std::remove_const_t<Found>;
  if constexpr (std::is_same_v<Kind, EqualsStep>) codec(found.step, found.is_later);
  if constexpr (std::is_same_v<Kind, PartEqualsStep>) codec(found.step);
  if constexpr (std::is_same_v<Kind, SumOfSteps>) codec(found.before, found.now);
  if constexpr (std::is_same_v<Kind, ShareOfUpdate>) codec(found.share);
  if constexpr (std::is_same_v<Kind, EqualsTensor>) codec(found.name);
  if constexpr (requires { found.dtype; }) codec(found.dtype);
  if constexpr (std::is_same_v<Kind, RouteMargins>) codec(found.token, found.first, found.greatest);
  if constexpr (std::is_same_v<Kind, SideLossParts>) codec(found.balance, found.z);
  if constexpr (std::is_same_v<Kind, OtherExperts>) {
    codec(found.experts, found.sources);
    demand(found.experts.size() == found.sources.size(), "an expert without a source");
  }
  if constexpr (std::is_same_v<Kind, ExpertResults>) {
    codec(found.tokens, found.lost, found.kept, found.unweighted, found.of_experts, found.several,
          found.of_tokens, found.choices, found.first);
    demand(found.first.empty() || found.first.size() == 4,
           "counts of results that are not complete");
  }
  if constexpr (std::is_same_v<Kind, OtherComputation>)
    codec(found.name, found.which, found.count, found.factor, found.places);
}

struct FieldCount {
  size_t fields = 0;
  template <class... Values>
  void operator()(const Values&...) {
    fields += sizeof...(Values);
  }
};

template <size_t... kind>
void begin_evidence(Evidence& evidence, uint64_t wanted, std::index_sequence<kind...>) {
  demand(((kind == wanted && (evidence.emplace<kind>(), true)) || ...),
         "evidence of an unknown kind");
}

template <class Codec, class Found>
void evidence_fields(Codec& codec, Found& evidence) {
  uint64_t kind = evidence.index();
  codec.fixed_array(2);
  codec(kind);
  if constexpr (Codec::kReads)
    begin_evidence(evidence, kind, std::make_index_sequence<std::variant_size_v<Evidence>>());
  const auto fields = [&](auto& found) {
    FieldCount count;
    found_fields(count, found);
    codec.fixed_array(count.fields);
    found_fields(codec, found);
  };
  std::visit(fields, evidence);
}

template <class Codec, class Row>
void row_fields(Codec& codec, Tables& tables, Row& row) {
  const size_t count = codec.array(is_short(row) ? kShortFields : kShortFields + kLongFields);
  codec.one_of(row.kind, kLastObservationKind, "kind");
  codec(row.name);
  codec.one_of(row.phase, Phase::kStep, "phase");
  codec(row.step, row.microbatch, row.order);
  codec.one_of(row.outcome, Outcome::kMissing, "outcome");
  codec.flags(row.partial, row.compares_replicas, row.rounding_only);
  codec(row.count, row.judged, row.padding, row.undrawn);
  codec(row.worst_ratio, row.worst_error, row.allowance, row.golden_scale);
  tables.texts.field(codec, row.dtype);
  tables.texts.field(codec, row.layout);
  tables.lists.field(codec, row.replicas);
  codec(row.digest, row.calls_before, row.tokens);
  if (codec.array(row.coverage_of_all == 0 ? 0 : 2) == 2) codec(row.covered, row.coverage_of_all);
  if (count == kShortFields) return;
  codec(row.reason, row.bad_count, row.golden_value, row.actual_value);
  codec(row.worst_global_index, row.worst_local_index, row.global_shape, row.local_shape);
  codec(row.factor, row.factor_residual, row.problem, row.partial_axes, row.site);
  codec.each(row.evidence, [&](auto& found) { evidence_fields(codec, found); });
  codec(row.rank);
}

// Throws when the fields of a piece contradict each other: the judge indexes by them.
void check_piece(const Piece& piece) {
  const auto demand_fit = [](bool whole) { demand(whole, "a piece that does not fit together"); };
  uint64_t full = 1;
  for (const int64_t size : piece.global_shape) {
    demand_fit(size >= 0 && (size == 0 || full < (1ULL << 48) / static_cast<uint64_t>(size)));
    full *= static_cast<uint64_t>(size);
  }
  demand_fit(piece.strides.size() == piece.dims.size());
  demand_fit(piece.drawn.empty() || (!piece.global_shape.empty() &&
                                     std::ssize(piece.drawn) == piece.global_shape.front()));
  uint64_t count = 1;
  uint64_t reach = 0;
  for (size_t d = 0; d < piece.dims.size(); ++d) {
    const uint64_t size = piece.dims[d].size();  // 0: the part is empty, whatever the others are
    demand_fit(size == 0 || count <= (1ULL << 48) / size);
    count *= size;
    int64_t largest = 0;
    for (const int64_t index : piece.dims[d]) {
      demand_fit(index >= -1 && index < (int64_t{1} << 40));
      largest = std::max(largest, index);
    }
    demand_fit(piece.strides[d] >= 0 && piece.strides[d] < (int64_t{1} << 40) &&
               (largest == 0 || piece.strides[d] <= (int64_t{1} << 60) / largest));
    reach += static_cast<uint64_t>(largest * piece.strides[d]);
  }
  demand_fit(count == piece.actual.size() && count == piece.golden.size() &&
             (count == 0 || reach < full));
}

template <class Codec, class Part>
void piece_fields(Codec& codec, Part& piece) {
  codec.fixed_array(17);
  codec.one_of(piece.kind, kLastObservationKind, "kind");
  codec(piece.name);
  codec.one_of(piece.phase, Phase::kStep, "phase");
  codec(piece.step, piece.microbatch, piece.rank, piece.order, piece.partial, piece.partial_axes);
  codec(piece.global_shape, piece.dims, piece.strides, piece.actual, piece.golden);
  codec(piece.allowance, piece.allowance_of_few, piece.drawn);
  if constexpr (Codec::kReads) check_piece(piece);
}

template <class Codec, class Entry>
void stretch_fields(Codec& codec, Tables& tables, Entry& stretch) {
  codec.fixed_array(10);
  tables.texts.field(codec, stretch.name);
  codec.one_of(stretch.kind, StretchKind::kAction, "kind");
  codec(stretch.in_virtual_time, stretch.start_us, stretch.duration_us, stretch.step);
  tables.texts.field(codec, stretch.group);
  codec(stretch.ready_us, stretch.blocked_from_us, stretch.last_rank);
}

template <class Codec, class Missing>
void unobserved_fields(Codec& codec, Missing& missing) {
  codec.fixed_array(8);
  codec(missing.order);
  codec.one_of(missing.phase, Phase::kStep, "phase");
  codec(missing.step);
  codec.one_of(missing.kind, kLastObservationKind, "kind");
  codec(missing.name, missing.global_shape, missing.microbatches);
  codec.one_of(missing.excuse, Excuse::kElsewhere, "excuse");
}

using CallCounts = decltype(RankReport::call_counts);

void count_fields(CborWriter& out, const CallCounts& counts) {
  out.array(3 * counts.size());
  for (const auto& [of, count] : counts) out(of.first, of.second, count);
}

void count_fields(CborReader& in, CallCounts& counts) {
  for (size_t left = in.array(); left >= 3; left -= 3) {
    std::string axis, op;
    in(axis, op);
    in(counts[{axis, op}]);
  }
}

template <class Codec, class Report>
void report_fields(Codec& codec, Report& report) {
  Tables tables;
  int64_t version = kVersion;
  codec.fixed_array(16);
  codec(version);
  if (version != kVersion) throw InternalError("a rank's report of another version");
  codec(report.rank);
  codec.one_of(report.holds, Holds::kRefits, "what the rank holds");
  ResultRow blank(Outcome::kNotJudged);
  blank.rank = report.rank;
  codec.each(
      report.rows, [&](auto& row) { row_fields(codec, tables, row); }, blank);
  codec.each(report.calls, [&](auto& call) { tables.texts.field(codec, call); });
  count_fields(codec, report.call_counts);
  codec.each(report.timeline, [&](auto& stretch) { stretch_fields(codec, tables, stretch); });
  codec.json(report.metrics);
  codec(report.warnings, report.scored_tokens, report.peak_tensor_bytes, report.seconds,
        report.compare_seconds);
  codec.each(report.pieces, [&](auto& piece) { piece_fields(codec, piece); });
  codec.each(report.unobserved, [&](auto& missing) { unobserved_fields(codec, missing); });
  codec(report.microbatch_samples);
}

}  // namespace

std::string encode(const RankReport& report) {
  CborWriter out;
  report_fields(out, report);
  return out.take();
}

RankReport decode_rank_report(const std::string& bytes) {
  CborReader in(bytes);
  RankReport report;
  report_fields(in, report);
  if (!in.empty()) throw InternalError("a rank's report is damaged: bytes follow its end");
  return report;
}

}  // namespace shardproof::sim::judge
