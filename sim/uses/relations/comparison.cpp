// Compares the values of the two cases of a relation.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/count_of.h"
#include "observe/observation_kind.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/uses/relations/relation_runs.h"
#include "tensor/aten_view.h"

namespace shardproof::sim::relations {
namespace {

const std::string kLayer = "model.layers.";

// Logprobs, loss, then gradients from the last layer to the first, then their norm.
struct Place {
  int group = 0;
  int64_t layer = 0;
  std::string name;
  auto operator<=>(const Place&) const = default;
};

Place place_of(const std::string& name) {
  using enum ObservationKind;
  const ObservationKind kind = kind_of_value(name);
  if (kind == kLogprobs || name == "probabilities") return {0, 0, name};
  if (kind != kGradient) return {kind == kLoss ? 1 : 6, 0, name};
  const std::string parameter = parameter_of(kind, name);
  if (parameter.starts_with(kLayer)) return {4, -std::stoll(parameter.substr(kLayer.size())), name};
  if (name.find("lm_head") != name.npos) return {2, 0, name};
  return {name.find("embed_tokens") == name.npos ? 3 : 5, 0, name};
}

Phase phase_of(const std::string& name) {
  const ObservationKind kind = kind_of_value(name);
  const bool of_step = kind == ObservationKind::kGradient || kind == ObservationKind::kGradNorm;
  return of_step ? Phase::kStep : Phase::kForward;
}

// The largest finite magnitude: no allowance follows from one that overflowed.
double largest(const at::Tensor& values) {
  if (values.numel() == 0) return 0;
  return at::nan_to_num(values, 0, 0, 0).abs().max().item<double>();
}

GoldenTensor facts_of(const std::string& name, const at::Tensor& value) {
  GoldenTensor facts;
  facts.value = view_of(value.contiguous());
  facts.phase = phase_of(name);
  facts.kind = kind_of_name(facts.phase, name);
  facts.scale = largest(value);
  return facts;
}

std::vector<int64_t> index_of(int64_t offset, const at::Tensor& tensor) {
  std::vector<int64_t> index(static_cast<size_t>(tensor.dim()));
  for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
    index[static_cast<size_t>(dim)] = offset % tensor.size(dim);
    offset /= tensor.size(dim);
  }
  return index;
}

// Nothing when all are equal or within the allowance, which is 0 where they have to be equal to the
// bit. Where both are NaN nothing is compared.
std::optional<Difference> difference_of(const std::string& name, const at::Tensor& first,
                                        const at::Tensor& second, double allowed) {
  const at::Tensor a = first.reshape(-1), b = second.reshape(-1);
  const at::Tensor error = (a - b).abs(), both_nan = a.isnan().logical_and(b.isnan());
  const at::Tensor right = a.eq(b).logical_or(error.le(allowed)).logical_or(both_nan);
  const int64_t wrong = right.numel() - right.sum().item<int64_t>();
  if (wrong == 0) return {};
  const int64_t worst =
      at::nan_to_num(error, HUGE_VAL).masked_fill(right, -1).argmax().item<int64_t>();
  return Difference{.tensor = name,
                    .missing = "",
                    .index = index_of(worst, first),
                    .first = a[worst].item<double>(),
                    .second = b[worst].item<double>(),
                    .error = error[worst].item<double>(),
                    .allowed = allowed,
                    .wrong = wrong,
                    .count = right.numel()};
}

Difference missing_tensor(const std::string& name, const char* run) {
  Difference difference;
  difference.tensor = name;
  difference.missing = run;
  return difference;
}

}  // namespace

Comparison compare_values(const CaseSpec& spec, const Values& first, const Values& second,
                          bool exact) {
  const judge::Tolerance tolerance(spec);
  std::set<Place> places;
  GoldenScales scales;
  for (const Values* values : {&first, &second}) {
    for (const auto& [name, value] : *values) places.insert(place_of(name));
  }
  for (const auto& [name, value] : first) {
    scales.add(facts_of(name, value), /*finite=*/true);
  }
  Comparison comparison;
  std::map<ObservationKind, std::optional<double>> magnitudes;  // the largest of the first case
  for (const Place& place : places) {
    const std::string& name = place.name;
    const auto a = first.find(name), b = second.find(name);
    std::optional<Difference> found;
    if (a == first.end() || b == second.end()) {
      found = missing_tensor(name, a == first.end() ? "the case" : "the changed case");
    } else if (a->second.sizes() != b->second.sizes()) {
      found = missing_tensor(name + " of this shape", "the changed case");
    } else {
      GoldenTensor facts = facts_of(name, a->second);
      facts.phase_scale = scales.of_phase(facts);
      const double allowed = exact ? 0 : tolerance.allowance(facts);
      found = difference_of(name, a->second, b->second, allowed);
      ++comparison.tensors;
      comparison.elements += a->second.numel();
      std::optional<double>& seen = magnitudes[facts.kind];
      seen = std::max(seen.value_or(0), facts.scale);
      const bool is_whole =
          exact || a->second.isfinite().logical_or(b->second.isfinite()).all().item<bool>();
      if (!is_whole && comparison.not_finite.empty()) comparison.not_finite = name;
      const double ratio = allowed > 0 ? largest(a->second - b->second) / allowed : 0;
      if (ratio > comparison.worst_ratio) {
        comparison.worst_ratio = ratio;
        comparison.worst_tensor = name;
      }
    }
    if (found && !comparison.difference) comparison.difference = found;
  }
  using enum ObservationKind;
  // A loss that is not 0 says nothing of gradients that are.
  const ObservationKind all = magnitudes[kGradient] ? kGradient
                              : magnitudes[kLoss]   ? kLoss
                                                    : kLogprobs;
  comparison.is_empty = comparison.tensors == 0 || magnitudes[all] == 0.0;
  return comparison;
}

std::string difference_text(const Difference& difference, const std::string& changed) {
  if (!difference.missing.empty()) {
    return fmt::format("{} has no {} (changed: {})", difference.missing, difference.tensor,
                       changed);
  }
  const std::string index =
      difference.index.empty() ? "" : fmt::format("[{}]", fmt::join(difference.index, ", "));
  return fmt::format(
      "{}{} is {:.12g}, and {:.12g} with {}: error {:.2g}, allowed {:.2g}; {} of {} "
      "{}",
      difference.tensor, index, difference.first, difference.second, changed, difference.error,
      difference.allowed, difference.wrong, count_of(difference.count, "element"),
      difference.count == 1 ? "differs" : "differ");
}

}  // namespace shardproof::sim::relations
