#include "sim/judge/explain/assembled.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/judge/diff/addends.h"

namespace shardproof::sim::judge {
namespace {

constexpr int64_t kLargestAssembled = 4 << 20;
// Numbers of experts are whole and few, so that one of them equals another by chance. With this
// allowance a match counts as little as that, and none is taken for another.
constexpr double kBetweenIds = 0.2;

void add_sums(Assembled& tensor) {
  double square = 0;
  int64_t known = 0;
  for (size_t e = 0; e < tensor.known.size(); ++e) {
    if (!tensor.known[e]) continue;
    ++known;
    square += tensor.golden[e] * tensor.golden[e];
    const double error = tensor.actual[e] - tensor.golden[e];
    tensor.difference += error * error;
    tensor.wrong += tensor.is_wrong(e);
  }
  if (known > 0) tensor.golden_size = std::sqrt(square / static_cast<double>(known));
}

double nats_of_values(const Assembled& tensor) {
  constexpr size_t kMost = 4096;  // elements
  std::vector<double> values;
  for (size_t e = 0; e < tensor.known.size() && values.size() < kMost; ++e) {
    if (tensor.known[e] && tensor.golden[e] != 0) values.push_back(tensor.golden[e]);
  }
  std::sort(values.begin(), values.end());
  double equal = 0;  // pairs
  for (size_t i = 0, first = 0; i < values.size(); ++i) {
    if (values[i] - values[first] > tensor.allowance) first = i;
    equal += static_cast<double>(i - first);
  }
  const auto count = static_cast<double>(values.size());
  return equal > 0 ? std::log(count * (count - 1) / 2 / equal)
                   : std::numeric_limits<double>::infinity();
}

}  // namespace

bool Assembled::is_wrong(size_t element) const {
  return !(std::fabs(actual[element] - golden[element]) <= allowance) ||
         (is_dropped(element) && actual[element] != 0);
}

bool Assembled::is_convinced_by(const Explained& sums, double choice_nats) const {
  return sums.convinces(allowance, golden_size, choice_nats) &&
         nats_of_values * static_cast<double>(sums.evidence) >= choice_nats + kChanceNats;
}

bool Assembled::has_experts() const { return is_of_experts(name, std::ssize(shape)); }

std::optional<Assembled> assemble(const std::vector<const Piece*>& pieces) {
  if (pieces.empty()) return std::nullopt;
  Assembled out;
  out.name = pieces.front()->name;
  out.shape = pieces.front()->global_shape;
  out.drawn = pieces.front()->drawn;
  out.token_dims = pieces.front()->dims.size() + 1 == out.shape.size();
  out.may_have_positions = pieces.front()->phase != Phase::kStep;
  out.zeros_are_exact = pieces.front()->kind == ObservationKind::kLogprobs;
  int64_t count = 1;
  for (const int64_t size : out.shape) count *= size;
  if (count > kLargestAssembled) return std::nullopt;
  out.known.assign(static_cast<size_t>(count), 0);
  out.actual.assign(static_cast<size_t>(count), 0);
  out.golden.assign(static_cast<size_t>(count), 0);
  for (const Piece* piece : pieces) {
    if (piece->global_shape != out.shape) return std::nullopt;
    out.allowance = std::max(out.allowance, piece->allowance);
    for_each_element(*piece, [&](int64_t offset, size_t local) {
      const auto at = static_cast<size_t>(offset);
      if (out.known[at]) {
        const double beside = std::fabs(out.actual[at] - piece->actual[local]);
        out.copies_differ = out.copies_differ || !(beside <= 2 * out.allowance);
        return;
      }
      out.known[at] = 1;
      out.actual[at] = piece->actual[local];
      out.golden[at] = piece->golden[local];
    });
  }
  if (is_route_ids(out.name)) out.allowance = std::max(out.allowance, kBetweenIds);
  add_sums(out);
  out.nats_of_values = nats_of_values(out);
  return out;
}

VectorBeside vector_beside(const Assembled& tensor, double factor) {
  const auto columns = static_cast<size_t>(tensor.shape.back());
  std::vector<double> mean(columns, 0);
  std::vector<int64_t> rows(columns, 0);
  for (size_t e = 0; e < tensor.actual.size(); ++e) {
    if (!tensor.known[e]) continue;
    mean[e % columns] += tensor.actual[e] - factor * tensor.golden[e];
    ++rows[e % columns];
  }
  constexpr int64_t kFewestRows = 4;
  const int64_t fewest = *std::min_element(rows.begin(), rows.end());
  if (fewest < kFewestRows) return {};
  for (size_t c = 0; c < columns; ++c) mean[c] /= static_cast<double>(rows[c]);
  return {mean, fewest};
}

Explained explained_by(const Assembled& tensor, double factor, const std::vector<double>& beside) {
  Explained sums;
  for (size_t e = 0; e < tensor.actual.size(); ++e) {
    if (!tensor.known[e]) continue;
    sums.add(tensor.actual[e], tensor.golden[e],
             factor * tensor.golden[e] + beside[e % beside.size()], tensor.allowance);
  }
  return sums;
}

std::string dim_name(const Assembled& tensor, size_t dim) {
  if (tensor.token_dims && dim == 0) return "the samples";
  if (tensor.token_dims && dim == 1) return "the positions";
  if (tensor.has_experts() && dim == 0) return "the experts";
  return fmt::format("dim {}", dim);
}

Walk walk_along(const std::vector<int64_t>& shape, size_t dim) {
  Walk walk{1, shape[dim], 1};
  for (size_t d = 0; d < dim; ++d) walk.outer *= shape[d];
  for (size_t d = dim + 1; d < shape.size(); ++d) walk.inner *= shape[d];
  return walk;
}

bool Fit::add(int64_t element, int64_t source) {
  const auto to = static_cast<size_t>(element), from = static_cast<size_t>(source);
  if (!tensor_.known[to] || !tensor_.known[from]) return true;
  if (tensor_.is_dropped(to) || tensor_.is_dropped(from)) return true;
  sums_.add(tensor_.actual[to], tensor_.golden[to], tensor_.golden[from], tensor_.allowance);
  return sums_.exact || sums_.left <= most_left_;
}

bool Fit::explains_tensor(double choice_nats) const {
  return 2 * sums_.wrong >= tensor_.wrong && sums_.evidence >= 2 &&
         tensor_.is_convinced_by(sums_, choice_nats);
}

}  // namespace shardproof::sim::judge
