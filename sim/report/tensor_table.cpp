// One entry per (phase, step, name); for each rank only the two numbers of the picture.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "base/digest.h"
#include "sim/report/escape.h"
#include "sim/report/results_json.h"

namespace shardproof::sim::report {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kFullRows = 8;  // wrong rows that are listed in full, per tensor

using TensorKey = std::tuple<Phase, int64_t, std::string>;

struct Gathered {
  std::vector<const judge::ResultRow*> rows;
  size_t seen = 0;  // position of its first row
};

bool is_larger(double a, double b) { return !std::isnan(b) && !(a <= b); }  // NaN is the largest

// The largest value over a rank's microbatches; null where the rank has no row.
Json per_rank(const Gathered& tensor, int64_t world_size, double judge::ResultRow::*field) {
  auto values = Json::array();
  for (int64_t rank = 0; rank < world_size; ++rank) values.push_back(nullptr);
  std::vector<double> largest(static_cast<size_t>(world_size), -1);
  for (const judge::ResultRow* row : tensor.rows) {
    if (row->rank < 0 || row->rank >= world_size) continue;
    double& so_far = largest[row->rank];
    if (!is_larger(row->*field, so_far)) continue;
    so_far = row->*field;
    values[row->rank] = json_number(so_far);
  }
  return values;
}

// 16 hexadecimal digits per rank; null where it has no digest.
Json json_of_digests(const std::map<int64_t, uint64_t>& digests, int64_t world_size) {
  auto values = Json::array();
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const auto found = digests.find(rank);
    values.push_back(found == digests.end() ? Json() : Json(fmt::format("{:016x}", found->second)));
  }
  return values;
}

// Of its observations under this name, in order.
Json digests_by_rank(const Gathered& tensor, int64_t world_size) {
  std::map<int64_t, uint64_t> digests;
  for (const judge::ResultRow* row : tensor.rows) {
    const auto [digest, first] = digests.emplace(row->rank, row->digest);
    if (!first) digest->second = mix_bits(digest->second * 31 + row->digest);
  }
  return json_of_digests(digests, world_size);
}

// The field of the first row that has it: rows that match may lack shapes.
template <class Field>
const Field& first_known(const Gathered& tensor, Field judge::ResultRow::*field) {
  for (const judge::ResultRow* row : tensor.rows) {
    if (!(row->*field).empty()) return row->*field;
  }
  return tensor.rows.front()->*field;
}

Json tensor_entry(const Gathered& tensor, int64_t world_size) {
  const judge::ResultRow& worst = worst_row(tensor.rows);
  Json entry = {{"name", valid_utf8(worst.name)},
                {"phase", phase_name(worst.phase)},
                {"step", worst.step},
                {"order", worst.order},
                {"ok", std::all_of(tensor.rows.begin(), tensor.rows.end(),
                                   [](const judge::ResultRow* row) { return !row->is_wrong(); })},
                {"outcome", name_of(worst.outcome)},
                {"dtype", first_known(tensor, &judge::ResultRow::dtype)},
                {"global_shape", first_known(tensor, &judge::ResultRow::global_shape)},
                {"layout", first_known(tensor, &judge::ResultRow::layout)},
                {"worst_rank", worst.rank},
                {"worst_ratio", json_number(worst.worst_ratio)},
                {"worst_error", json_number(worst.worst_error)},
                {"allowance", json_number(worst.allowance)},
                {"golden_scale", json_number(worst.golden_scale)},
                {"ratio", per_rank(tensor, world_size, &judge::ResultRow::worst_ratio)},
                {"digest", digests_by_rank(tensor, world_size)}};
  auto wrong = Json::array();
  for (const judge::ResultRow* row : tensor.rows) {
    if (row->is_wrong() && wrong.size() < kFullRows)
      wrong.push_back(json_finite(judge::to_json(*row)));
  }
  if (!wrong.empty()) entry["wrong"] = std::move(wrong);
  return entry;
}

// A sum over rows, which ranks may observe in any order.
uint64_t digest_of_row(const judge::ResultRow& row) {
  const uint64_t name = digest_of(row.name.data(), row.name.size());
  return mix_bits(mix_bits(name + static_cast<uint64_t>(row.microbatch)) ^ row.digest);
}

}  // namespace

Json digest_table(const judge::CaseResult& result) {
  struct Gathered {
    Phase phase = Phase::kForward;
    std::set<std::string_view> names, fed;
    std::map<int64_t, uint64_t> digests;  // by rank
  };
  std::map<judge::GoldenPosition, Gathered> by_step;
  for (const judge::RankReport& report : result.reports) {
    for (const judge::ResultRow& row : report.rows) {
      Gathered& of_step = by_step[judge::golden_position(row.step, row.phase, 0)];
      of_step.phase = row.phase;
      of_step.names.insert(row.name);
      if (row.kind == ObservationKind::kFed) of_step.fed.insert(row.name);
      of_step.digests[row.rank] += digest_of_row(row);
    }
  }
  auto table = Json::array();
  for (const auto& [place, gathered] : by_step) {
    table.push_back(
        {{"phase", phase_name(gathered.phase)},
         {"step", std::get<0>(place)},
         {"tensors", gathered.names.size()},
         {"fed", gathered.fed.size()},
         {"digest", json_of_digests(gathered.digests, result.spec.parallel.world_size())}});
  }
  return table;
}

Json tensor_table(const judge::CaseResult& result) {
  std::map<TensorKey, Gathered> by_key;
  size_t seen = 0;
  for (const judge::RankReport& report : result.reports) {
    for (const judge::ResultRow& row : report.rows) {
      auto& tensor = by_key[{row.phase, row.step, row.name}];
      if (tensor.rows.empty()) tensor.seen = seen;
      tensor.rows.push_back(&row);
      ++seen;
    }
  }
  std::vector<const Gathered*> ordered;
  for (const auto& [key, tensor] : by_key) ordered.push_back(&tensor);
  const auto place = [](const Gathered* tensor) {
    const int64_t order = tensor->rows.front()->order;
    return std::tuple(order < 0, order, tensor->seen);
  };
  std::sort(ordered.begin(), ordered.end(),
            [&](const Gathered* a, const Gathered* b) { return place(a) < place(b); });
  auto table = Json::array();
  for (const Gathered* tensor : ordered) {
    table.push_back(tensor_entry(*tensor, result.spec.parallel.world_size()));
  }
  return table;
}

}  // namespace shardproof::sim::report
