#include "sim/uses/relations/compare.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/count_of.h"
#include "observe/observation_kind.h"
#include "sim/judge/diff/tolerance.h"
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
  const ObservationKind kind = kind_of_name(Phase::kStep, name);
  if (kind == kLogprobs || name == "probabilities") return {0, 0, name};
  if (kind != kGradient) return {kind == kLoss ? 1 : 6, 0, name};
  const std::string parameter = parameter_of(kind, name);
  if (parameter.starts_with(kLayer)) return {4, -std::stoll(parameter.substr(kLayer.size())), name};
  if (name.find("lm_head") != name.npos) return {2, 0, name};
  return {name.find("embed_tokens") == name.npos ? 3 : 5, 0, name};
}

Phase phase_of(const std::string& name) {
  const ObservationKind kind = kind_of_name(Phase::kStep, name);
  const bool of_step = kind == ObservationKind::kGradient || kind == ObservationKind::kGradNorm;
  return of_step ? Phase::kStep : Phase::kForward;
}

double largest(const at::Tensor& values) {
  return values.numel() == 0 ? 0 : values.abs().max().item<double>();
}

std::vector<int64_t> index_of(int64_t offset, const at::Tensor& tensor) {
  std::vector<int64_t> index(static_cast<size_t>(tensor.dim()));
  for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
    index[static_cast<size_t>(dim)] = offset % tensor.size(dim);
    offset /= tensor.size(dim);
  }
  return index;
}

// Nothing when all are equal or within the allowance; NaN is within none. Of tensors that have to
// be equal to the bit, values that are not finite are equal too.
std::optional<Difference> difference_of(const std::string& name, const at::Tensor& first,
                                        const at::Tensor& second, double allowed) {
  const at::Tensor a = first.reshape(-1), b = second.reshape(-1);
  const at::Tensor error = (a - b).abs();
  const at::Tensor right =
      allowed > 0 ? error.le(allowed) : a.eq(b).logical_or(a.ne(a).logical_and(b.ne(b)));
  const int64_t wrong = right.numel() - right.sum().item<int64_t>();
  if (wrong == 0) return {};
  const int64_t worst = at::nan_to_num(error, HUGE_VAL).argmax().item<int64_t>();
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
  std::map<Phase, double> phase_scales;
  for (const Values* values : {&first, &second}) {
    for (const auto& [name, value] : *values) places.insert(place_of(name));
  }
  for (const auto& [name, value] : first) {
    double& scale = phase_scales[phase_of(name)];
    scale = std::max(scale, largest(value));
  }
  Comparison comparison;
  for (const Place& place : places) {
    const std::string& name = place.name;
    const auto a = first.find(name), b = second.find(name);
    std::optional<Difference> found;
    if (a == first.end() || b == second.end()) {
      found = missing_tensor(name, a == first.end() ? "the case" : "the changed case");
    } else if (a->second.sizes() != b->second.sizes()) {
      found = missing_tensor(name + " of this shape", "the changed case");
    } else {
      GoldenTensor facts;
      facts.value = view_of(a->second.contiguous());
      facts.scale = largest(a->second);
      facts.kind = kind_of_name(phase_of(name), name);
      facts.phase_scale = phase_scales[phase_of(name)];
      const double allowed = exact ? 0 : tolerance.allowance(facts);
      found = difference_of(name, a->second, b->second, allowed);
      ++comparison.tensors;
      comparison.elements += a->second.numel();
      const double ratio = allowed > 0 ? largest(a->second - b->second) / allowed : 0;
      if (ratio > comparison.worst_ratio) {
        comparison.worst_ratio = ratio;
        comparison.worst_tensor = name;
      }
    }
    if (found && !comparison.difference) comparison.difference = found;
  }
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
