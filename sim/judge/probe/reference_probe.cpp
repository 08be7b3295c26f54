#include "sim/judge/probe/reference_probe.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/digest.h"
#include "base/error.h"
#include "sim/case/record/sampled_rows.h"
#include "sim/judge/probe/census.h"
#include "tensor/aten_view.h"

namespace shardproof::sim::judge {
namespace {

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

// The size of a dim before the cuts that left `size` of it. The vocabulary and the width of an MLP
// need not divide by tp, so that parts are unequal.
int64_t uncut(int64_t size, int64_t dim, const Layout& layout, const FullSizes& sizes,
              int64_t mlp_width, const Mesh& mesh) {
  const std::vector<Cut>& cuts = layout.cuts();
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    if (cut->dim != dim) continue;
    if (mlp_width > 0) return mlp_width;
    switch (cut->kind) {
      case Cut::Kind::kRepeated:
        size *= cut->parts;
        break;
      case Cut::Kind::kPadded:
        size = sizes.vocab_size;
        break;
      default:
        size *= mesh.size(cut->axis);
    }
  }
  return size;
}

}  // namespace

std::vector<int64_t> full_shape_of(const Observation& observation, const FullSizes& sizes,
                                   const Mesh& mesh) {
  std::vector<int64_t> shape = observation.tensor.sizes().vec();
  if (observation.phase == Phase::kStep) {
    const auto found = sizes.parameters.find(parameter_of(observation.kind, observation.name));
    return found == sizes.parameters.end() ? shape : found->second;
  }
  if (!observation.token_map.defined()) return shape;
  const auto dims = static_cast<int64_t>(shape.size());
  const Layout layout = observation.layout.resolved(dims);
  const auto is_in = [&](const char* part) {
    return observation.name.find(part) != std::string::npos;
  };
  const int64_t mlp_width = is_in(".mlp.shared_expert") ? sizes.shared_width
                            : is_in(".mlp.")            ? sizes.intermediate_size
                                                        : 0;
  shape.at(0) = sizes.samples;
  shape.at(1) = sizes.seq_len;
  for (int64_t dim = 2; dim < dims; ++dim) {
    shape[static_cast<size_t>(dim)] =
        uncut(shape[static_cast<size_t>(dim)], dim, layout, sizes, mlp_width, mesh);
  }
  return shape;
}

ReferenceProbe::ReferenceProbe(const CaseSpec& spec, const Mesh& mesh, int64_t rank,
                               FullSizes sizes)
    : folder_(spec.reference.folder),
      activations_(spec.record_activations),
      sample_rows_(spec.sample_rows),
      seed_(spec.seed),
      mesh_(mesh),
      rank_(rank),
      sizes_(std::move(sizes)),
      pieces_{.rank = rank, .host = host_name()} {}

bool ReferenceProbe::listens(Phase phase) const {
  if (phase == Phase::kRecompute) return false;
  return phase != Phase::kBackward || activations_;
}

void ReferenceProbe::observe(const Observation& observation) {
  const std::string& name = observation.name;
  if (!listens(observation.phase) || observation.kind == ObservationKind::kInitial) return;
  if (observation.kind == ObservationKind::kBoundary) return;  // of this layout's stages alone
  if (!activations_ && is_of_microbatch(observation.phase, observation.kind)) return;
  const at::NoGradGuard no_grad;
  const at::Tensor tensor = observation.tensor.detach().cpu().contiguous();
  const TensorView local = view_of(tensor);
  const bool addend = observation.part == Part::kPartial;
  const std::vector<int64_t> shape = full_shape_of(observation, sizes_, mesh_);
  GivenPiece piece;
  piece.facts.phase = observation.phase;
  piece.facts.step = observation.step;
  piece.facts.kind = observation.kind;
  piece.facts.name = name;
  piece.facts.token_dims = observation.token_map.defined();
  piece.facts.kept_in_float32 = observation.phase == Phase::kForward &&
                                c10::multiply_integers(shape) > 1 &&
                                local.dtype() == Dtype::kFloat32;
  if (!shape.empty()) {
    piece.facts.rows = drawn_rows(piece.facts, shape.front(), sample_rows_, seed_);
    if (!piece.facts.rows.empty()) piece.facts.all_rows = shape.front();
  }
  const auto plan_of = [&](const std::vector<int64_t>& rows) {
    return make_index_plan(shape, observation.layout, view_of(observation.token_map),
                           addend ? observation.partial_axes : std::vector<std::string>(), mesh_,
                           rank_, rows);
  };
  const IndexPlan plan = plan_of(piece.facts.rows);
  piece.integers = local.dtype() == Dtype::kInt64;
  const bool known = piece.integers || is_floating(local.dtype());
  if (!plan.problem.empty() || local.sizes() != plan.local_shape || !known) {
    throw_failed(fmt::format("{} [{}] of rank {} does not fit its declared layout {}{}{}", name,
                             fmt::join(local.sizes(), ", "), rank_, observation.layout.describe(),
                             plan.problem.empty() ? "" : ": ", plan.problem),
                 "compare the reference's layout with one device");
  }
  piece.shape = plan.golden_shape();
  piece.microbatch = observation.microbatch;
  piece.digest = digest_of(local.bytes(), local.nbytes());
  piece.tokens = plan.tokens;
  piece.compares_replicas = !plan.only_padding;
  piece.replicas = plan.replicas.ranks();
  if (addend) piece.addend_of = mesh_.peers_along(observation.partial_axes, rank_);
  // By the layout alone, ranks with other tokens are copies too.
  const bool first = piece.facts.token_dims || piece.replicas.front() == rank_;
  measure(local, piece.facts.rows.empty() ? plan : plan_of({}), observation.scale, first, piece);
  put(kept_rows(local, plan), plan, observation.scale, addend, first, piece);
  pieces_.pieces.push_back(std::move(piece));
}

void ReferenceProbe::measure(const TensorView& local, const IndexPlan& plan, double scale,
                             bool first, GivenPiece& piece) {
  if (piece.integers) return;
  with_floating_dtype(local.dtype(), [&](auto one) {
    const auto* from = local.data<decltype(one)>();
    plan.for_each_run([&](int64_t start, int64_t, int64_t length) {
      for (int64_t i = start; i < start + length; ++i) {
        const double value = static_cast<double>(from[i]) / scale;
        piece.finite = piece.finite && std::isfinite(value);
        if (first) piece.magnitude.add(std::fabs(value));
      }
    });
  });
}

void ReferenceProbe::put(const TensorView& local, const IndexPlan& plan, double scale, bool addend,
                         bool first, const GivenPiece& piece) const {
  if (plan.count == 0) return;
  const PiecesFile file = PiecesFile::to_write(folder_, piece.facts, piece.shape);
  if (!first) return;
  if (piece.integers) {
    const auto* from = local.data<int64_t>();
    auto* to = reinterpret_cast<int64_t*>(file.values());
    plan.for_each_run([&](int64_t start, int64_t offset, int64_t length) {
      std::copy_n(from + start, length, to + offset);
      std::fill_n(file.givers() + offset, length, uint8_t{1});
    });
    return;
  }
  const auto write = [&] {
    with_floating_dtype(local.dtype(), [&](auto one) {
      const auto* from = local.data<decltype(one)>();
      plan.for_each_run([&](int64_t start, int64_t offset, int64_t length) {
        double* to = file.values() + offset;
        uint8_t* givers = file.givers() + offset;
        for (int64_t i = 0; i < length; ++i) {
          const double value = static_cast<double>(from[start + i]) / scale;
          to[i] = addend ? to[i] + value : value;
          if (!addend) givers[i] = 1;
          if (addend && givers[i] < std::numeric_limits<uint8_t>::max()) ++givers[i];
        }
      });
    });
  };
  if (addend) {
    file.alone(write);
  } else {
    write();
  }
}

}  // namespace shardproof::sim::judge
