// Muon's part of OwnOptimizer.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/case/policy_stages.h"
#include "sim/case/record/sampled_rows.h"
#include "sim/judge/diff/muon.h"
#include "sim/judge/probe/own_optimizer.h"

namespace shardproof::sim::judge {
namespace {

// Of [m, n] in float64, by the definition of the iteration.
at::Tensor iterated(const at::Tensor& matrix) {
  at::Tensor x = matrix / std::max(matrix.norm().item<double>(), 1e-7);
  const bool wide = matrix.size(0) <= matrix.size(1);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor gram = wide ? x.mm(x.t()) : x.t().mm(x);
    const at::Tensor factor =
        at::eye(gram.size(0), gram.options()) * 3.4445 - gram * 4.7750 + gram.mm(gram) * 2.0315;
    x = wide ? factor.mm(x) : x.mm(factor);
  }
  return x;
}

at::Tensor at_places(at::Tensor whole, const std::vector<at::Tensor>& places) {
  for (size_t dim = 0; dim < places.size(); ++dim) {
    whole = whole.index_select(static_cast<int64_t>(dim), places[dim]);
  }
  return whole.contiguous();
}

}  // namespace

std::vector<at::Tensor> OwnOptimizer::own_places(const Tracked& tracked, const Observation& whole,
                                                 const std::vector<int64_t>& shape) const {
  const Mesh mesh = spec_.stages.empty() ? mesh_ : parallel_at(spec_, whole.step).mesh();
  const Layout collected = whole.layout.resolved(std::ssize(shape));
  const Layout held_here = tracked.layout.resolved(std::ssize(shape));
  std::vector<at::Tensor> places;
  for (int64_t dim = 0; dim < std::ssize(shape); ++dim) {
    const int64_t size = shape[static_cast<size_t>(dim)];
    std::map<int64_t, int64_t> held;  // where the collected matrices have each index
    for (const int64_t index : collected.indices(dim, size, mesh, rank_)) {
      held.emplace(index, std::ssize(held));
    }
    std::vector<int64_t> own;
    for (const int64_t index : held_here.indices(dim, size, mesh, rank_)) {
      const auto found = held.find(index);
      if (found == held.end()) return {};
      own.push_back(found->second);
    }
    places.push_back(at::tensor(own, at::kLong));
  }
  return places;
}

// Derives the momentum and the rank's part of the matrix from its own gradient, and its part of the
// update from the matrix as it has collected it.
std::string OwnOptimizer::see_whole(const Observation& observation, const at::Tensor& whole) {
  const std::string name = parameter_of(observation.kind, observation.name);
  const GoldenTensor* golden = golden_.find(Phase::kStep, observation.step, observation.name);
  Tracked& tracked = parameters_[name];
  tracked.update = {};
  if (!golden || !has_step(tracked, observation.step, tracked.value.bytes.size())) return "";
  const std::vector<int64_t> shape = full_shape(*golden, golden->value.sizes());
  const std::vector<at::Tensor> places = own_places(tracked, observation, shape);
  if (places.empty() || whole.dim() != std::ssize(shape)) return "";

  const OptimizerSpec& o = spec_.optimizer;
  const at::Tensor part = at_places(whole, places);
  const auto count = static_cast<size_t>(part.numel());
  const std::vector<double> gradient = clipped_gradient(tracked, count);
  const std::vector<double> before =
      doubles(tracked.state[ObservationKind::kMomentumBuffer], count);
  Expected buffer{std::vector<double>(count), std::vector<double>(count)};
  Expected own = buffer;
  for (size_t i = 0; i < count; ++i) {
    const double kept = o.momentum * before[i], joins = (1 - o.momentum) * gradient[i];
    buffer.value[i] = kept + joins;
    // lerp computes g + momentum (b - g) where the momentum is small.
    buffer.magnitude[i] = std::fabs(before[i]) + std::fabs(gradient[i]);
    own.value[i] = o.nesterov ? joins + o.momentum * buffer.value[i] : buffer.value[i];
    own.magnitude[i] = buffer.magnitude[i] + std::fabs(gradient[i]);
  }
  tracked.momentum = std::move(buffer);
  const std::string finding = compare(own, part);

  const MuonMatrices matrices = muon_matrices(name, shape);
  const at::Tensor flat = whole.to(at::kDouble).reshape({-1, matrices.rows, matrices.columns});
  std::vector<at::Tensor> updates;
  for (const at::Tensor& matrix : flat.unbind(0)) updates.push_back(iterated(matrix));
  const at::Tensor update = at::stack(updates).view(whole.sizes()) * matrices.scale();
  tracked.update.value = doubles(at_places(update, places));
  tracked.update.magnitude.assign(count, kSteepestOfMuon * matrices.scale());
  return finding;
}

OwnOptimizer::Expected OwnOptimizer::muon_step(Tracked& tracked, double rate) const {
  Expected expected = std::move(tracked.update);
  tracked.update = {};
  tracked.expected[ObservationKind::kMomentumBuffer] = std::move(tracked.momentum);
  const std::vector<double> w = doubles(tracked.value, expected.value.size());
  for (size_t i = 0; i < w.size(); ++i) {
    expected.value[i] = w[i] * (1 - rate * spec_.optimizer.weight_decay) - rate * expected.value[i];
    expected.magnitude[i] = std::fabs(w[i]) + rate * expected.magnitude[i];
  }
  return expected;
}

}  // namespace shardproof::sim::judge
