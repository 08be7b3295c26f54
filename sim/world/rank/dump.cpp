#include "sim/world/rank/dump.h"

#include <ATen/ATen.h>

#include <optional>

#include "comm/shared_failure.h"
#include "model/config.h"
#include "sim/case/policy_stages.h"
#include "sim/case/record/expected_names.h"
#include "sim/world/rank/case_options.h"
#include "tensor/safetensors.h"
#include "train/loss.h"

namespace shardproof::sim::world {
namespace {

std::vector<std::string> file_names(const CaseSpec& spec, const Observation& seen) {
  return spec.stages.empty() ? expected_names_of(seen.kind, seen.name, seen.step, spec.steps)
                             : moment_names_of(seen.kind, seen.name, seen.step);
}

// The full tensor with this rank's piece in it and 0 elsewhere; all 0 if a lower rank has the same
// piece.
at::Tensor spread(const Observation& seen, const std::vector<int64_t>& shape, const Mesh& mesh,
                  int64_t rank, const TokenCuts& cuts) {
  const at::Tensor full = at::zeros(shape, at::kDouble);
  const at::Tensor piece = seen.tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  if (seen.token_map.defined()) {  // logprobs, which all ranks of the same samples hold whole
    if (!is_first_of_samples(cuts, mesh, rank)) return full;
    const at::Tensor target = seen.token_map.reshape(-1);
    const at::Tensor real = target >= 0;
    full.view(-1).index_put_({target.masked_select(real)}, piece.reshape(-1).masked_select(real));
    return full;
  }
  if (seen.layout.replicas_of(mesh, rank).front() != rank) return full;
  std::vector<at::Tensor> local(shape.size());
  std::vector<at::Tensor> global(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    const at::Tensor index =
        at::tensor(seen.layout.indices(static_cast<int64_t>(d), shape[d], mesh, rank), at::kLong);
    local[d] = at::nonzero(index >= 0).reshape(-1);
    global[d] = index.index_select(0, local[d]);
  }
  at::Tensor kept = piece;
  for (size_t d = 0; d < shape.size(); ++d) {
    kept = kept.index_select(static_cast<int64_t>(d), local[d]);
  }
  if (shape.empty()) return piece.clone();
  c10::List<std::optional<at::Tensor>> grid;
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> view(shape.size(), 1);
    view[d] = -1;
    grid.push_back(global[d].view(view));
  }
  full.index_put_(grid, kept);
  return full;
}

}  // namespace

void DumpProbe::observe(const Observation& observation) {
  next_.observe(observation);
  if (file_names(spec_, observation).empty()) return;
  kept_.push_back(observation);
  kept_.back().tensor = observation.tensor.detach().clone();
}

void write_dump(const CaseSpec& spec, const std::vector<Observation>& kept, const Batch& batch,
                const std::map<std::string, std::vector<int64_t>>& parameter_shapes,
                MeshComm& comm) {
  const auto full_shape = [&](const Observation& seen) -> std::vector<int64_t> {
    if (seen.kind == ObservationKind::kLogprobs) {
      return {samples_at(spec, seen.step, batch.size()), batch.seq_len()};
    }
    const bool of_parameter =
        seen.kind == ObservationKind::kGradient || seen.kind == ObservationKind::kParameter;
    return of_parameter ? parameter_shapes.at(parameter_of(seen.kind, seen.name))
                        : seen.tensor.sizes().vec();
  };
  std::map<std::string, at::Tensor> sums;  // in the same order on every rank
  for (const Observation& seen : kept) {
    const ParallelSpec parallel = parallel_at(spec, seen.step);
    const Mesh mesh = parallel.mesh();
    const TokenCuts cuts = make_styles(parallel_options(parallel)).token_cuts(mesh);
    const at::Tensor full = spread(seen, full_shape(seen), mesh, comm.rank(), cuts);
    for (const std::string& name : file_names(spec, seen)) {
      const auto [place, fresh] = sums.try_emplace(name, full);
      if (!fresh) place->second = place->second + full;  // microbatches fill different samples
    }
  }
  if (spec.stages.empty()) {  // ranks of other stages of a pipeline have no logprobs
    const bool heads_run = spec.is(ModelWorkload::kTrain);
    const int64_t heads = heads_run ? ModelConfig::from_json(spec.model).extra_heads : 0;
    const std::vector<int64_t> shape = {samples_at(spec, 1, batch.size()), batch.seq_len()};
    for (int64_t depth = 0; depth <= heads; ++depth) {
      for (const std::string& name : expected_names_of(
               ObservationKind::kLogprobs, logprobs_name(depth), /*step=*/1, spec.steps)) {
        sums.try_emplace(name, at::zeros(shape, at::kDouble));
      }
    }
  }
  NamedTensors out;
  for (const auto& [name, tensor] : sums) {
    out.emplace_back(name, comm.world().all_reduce(tensor, ReduceOp::kSum, "dump " + name));
  }
  std::optional<Error> failure;
  if (comm.rank() == 0) {
    try {
      write_safetensors(spec.dump_file, out, {{"writer", "shardproof"}});
    } catch (const Error& error) {
      failure = error;
    }
  }
  throw_together(comm.world(), failure, "dump written");
}

}  // namespace shardproof::sim::world
