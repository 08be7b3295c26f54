// Muon's part of OwnOptimizer.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

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
  tracked.update.clear();
  if (!golden || !has_step(tracked, observation.step, tracked.value.size)) return "";
  const std::vector<int64_t> shape = full_shape(*golden, golden->value.sizes());
  const std::vector<at::Tensor> places = own_places(tracked, observation, shape);
  if (places.empty() || whole.dim() != std::ssize(shape)) return "";

  const OptimizerSpec& o = spec_.optimizer;
  const at::Tensor part = at_places(whole, places);
  const Gradient gradient = clipped_gradient(tracked);
  tracked.momentum = [&o, gradient, before = tracked.state[ObservationKind::kMomentumBuffer]](
                         size_t first, size_t count, Block& due) {
    std::array<double, kBlock> g, b;
    gradient(first, count, g.data());
    before.read(first, count, b.data());
    for (size_t i = 0; i < count; ++i) {
      due.value[i] = o.momentum * b[i] + (1 - o.momentum) * g[i];
      // lerp computes g + momentum (b - g) where the momentum is small.
      due.magnitude[i] = std::fabs(b[i]) + std::fabs(g[i]);
    }
  };
  const auto own = [&](size_t first, size_t count, Block& due) {
    std::array<double, kBlock> g;
    gradient(first, count, g.data());
    tracked.momentum(first, count, due);
    for (size_t i = 0; i < count; ++i) {
      if (o.nesterov) due.value[i] = (1 - o.momentum) * g[i] + o.momentum * due.value[i];
      due.magnitude[i] += std::fabs(g[i]);
    }
  };
  const std::string finding = compare(own, part);

  const MuonMatrices matrices = muon_matrices(name, shape);
  const at::Tensor flat = whole.to(at::kDouble).reshape({-1, matrices.rows, matrices.columns});
  std::vector<at::Tensor> updates;
  for (const at::Tensor& matrix : flat.unbind(0)) updates.push_back(iterated(matrix));
  const at::Tensor update = at::stack(updates).view(whole.sizes()) * matrices.scale();
  const at::Tensor own_update = at_places(update, places);
  const auto* values = own_update.const_data_ptr<double>();
  tracked.update.assign(values, values + own_update.numel());
  tracked.largest_update = kSteepestOfMuon * matrices.scale();
  return finding;
}

OwnOptimizer::Expected OwnOptimizer::muon_step(Tracked& tracked, double rate) const {
  tracked.expected[ObservationKind::kMomentumBuffer] = std::move(tracked.momentum);
  const double kept = 1 - rate * spec_.optimizer.weight_decay;
  const double largest = rate * tracked.largest_update;
  return [=, value = tracked.value, update = std::exchange(tracked.update, {})](
             size_t first, size_t count, Block& due) {
    value.read(first, count, due.value.data());
    for (size_t i = 0; i < count; ++i) {
      due.magnitude[i] = std::fabs(due.value[i]) + largest;
      due.value[i] = due.value[i] * kept - rate * update[first + i];
    }
  };
}

}  // namespace shardproof::sim::judge
