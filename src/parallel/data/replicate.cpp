#include "parallel/data/replicate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "parallel/style/gradient_rules.h"

namespace shardproof {

SampleRange samples_of(int64_t batch_size, int64_t dp_size, int64_t dp_rank) {
  const int64_t base = batch_size / dp_size;
  const int64_t longer = batch_size % dp_size;
  return {.first = dp_rank * base + std::min(dp_rank, longer),
          .count = base + (dp_rank < longer ? 1 : 0)};
}

namespace {

constexpr int64_t kBucketBytes = 16 << 20;

// Averages grads[first, last). While a rank waits for its peers it holds the bucket once: the
// gradients in it are freed and replaced by views of the average.
void average_bucket(std::vector<at::Tensor>& grads, size_t first, size_t last,
                    const std::string& label, Communicator& dp) {
  std::vector<at::Tensor> flat;
  std::vector<std::vector<int64_t>> shapes;
  for (size_t i = first; i < last; ++i) {
    flat.push_back(grads[i].reshape(-1));
    shapes.push_back(grads[i].sizes().vec());
    grads[i] = at::Tensor();
  }
  at::Tensor bucket = at::cat(flat);
  flat.clear();
  PendingCollective reduction = dp.all_reduce_async(bucket, ReduceOp::kAvg, label);
  bucket = at::Tensor();  // the collective has its own copy
  const at::Tensor averaged = reduction.wait();
  int64_t offset = 0;
  for (size_t i = first; i < last; ++i) {
    const int64_t numel = c10::multiply_integers(shapes[i - first]);
    grads[i] = averaged.narrow(0, offset, numel).view(shapes[i - first]);
    offset += numel;
  }
}

void average_gradients(std::vector<at::Tensor>& grads, const std::vector<std::string>& names,
                       Communicator& dp) {
  if (dp.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (size_t first = 0; first < grads.size();) {
    size_t last = first;
    int64_t bytes = 0;
    while (last < grads.size() &&
           (last == first || bytes + static_cast<int64_t>(grads[last].nbytes()) <= kBucketBytes)) {
      bytes += static_cast<int64_t>(grads[last].nbytes());
      ++last;
    }
    const std::string label =
        "grad." + names[first] + (last - first > 1 ? " .. grad." + names[last - 1] : std::string());
    average_bucket(grads, first, last, label, dp);
    first = last;
  }
}

// Whether the gradient has one size on all ranks that are not averaged with each other, apart from
// those that hold nothing of it.
bool is_equal_elsewhere(const Parameter& parameter, const MeshComm& comm,
                        const std::vector<std::string>& averaged) {
  const Mesh& mesh = comm.mesh();
  const std::vector<Cut>& cuts = parameter.layout.cuts();
  std::vector<std::string> others;
  for (const MeshAxis& axis : mesh.axes()) {
    const bool holds = std::none_of(cuts.begin(), cuts.end(), [&](const Cut& cut) {
      return cut.kind == Cut::Kind::kHeldBy && cut.axis == axis.name;
    });
    if (holds && std::find(averaged.begin(), averaged.end(), axis.name) == averaged.end()) {
      others.push_back(axis.name);
    }
  }
  const auto shape_at = [&](int64_t rank) {
    return parameter.layout.local_shape(parameter.global_shape, mesh, rank);
  };
  const std::vector<int64_t> peers = mesh.peers_along(others, comm.rank());
  return std::all_of(peers.begin(), peers.end(),
                     [&](int64_t peer) { return shape_at(peer) == shape_at(peers[0]); });
}

}  // namespace

void average_parameter_gradients(const std::vector<ParameterPtr>& parameters,
                                 std::vector<at::Tensor>& grads, MeshComm& comm,
                                 const std::vector<std::string>& token_axes) {
  SHARDPROOF_ASSERT(parameters.size() == grads.size(), "one gradient per parameter");
  // Every rank makes the buckets in the same order.
  std::map<std::pair<std::vector<std::string>, bool>, std::vector<size_t>> buckets;
  for (size_t i = 0; i < grads.size(); ++i) {
    const std::vector<std::string> axes = mean_axes(parameters[i]->rule, token_axes);
    buckets[{axes, !is_equal_elsewhere(*parameters[i], comm, axes)}].push_back(i);
  }
  for (const auto& [key, places] : buckets) {
    std::vector<std::string> names;
    std::vector<at::Tensor> chosen;
    for (const size_t i : places) {
      names.push_back(parameters[i]->name);
      chosen.push_back(std::move(grads[i]));
    }
    average_gradients(chosen, names, comm.along(key.first));
    for (size_t i = 0; i < places.size(); ++i) grads[places[i]] = chosen[i];
  }
}

}  // namespace shardproof
