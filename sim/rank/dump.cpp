#include "sim/rank/dump.h"

#include <ATen/ATen.h>

#include <map>

#include "base/error.h"
#include "tensor/safetensors.h"

namespace shardproof::sim {
namespace {

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

// The names in expected.safetensors of one observation; empty when the file does not hold it.
std::vector<std::string> file_names(const Observation& seen, int64_t last_step) {
  const std::string step = "step" + std::to_string(seen.step) + ".";
  const bool first = seen.step <= 1;
  std::vector<std::string> names;
  if (seen.name == "logprobs" && first) names.push_back("logprobs");
  if (seen.name == "loss" || seen.name == "grad_norm") {
    if (first) names.push_back(seen.name);
    names.push_back(step + seen.name);
  }
  if (starts_with(seen.name, "grad.") && first) names.push_back(seen.name);
  if (starts_with(seen.name, "param.") && seen.step == last_step) names.push_back(step + seen.name);
  return names;
}

// The full tensor with this rank's piece in it and 0 elsewhere; all 0 when another rank owns it
// first.
at::Tensor spread(const Observation& seen, const std::vector<int64_t>& shape, MeshComm& comm) {
  const at::Tensor full = at::zeros(shape, at::kDouble);
  const at::Tensor piece = seen.tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  if (seen.token_map.defined()) {  // logprobs, whole on every rank of a dp rank: the first has them
    for (const char* axis : {"cp", "ulysses", "tp"}) {
      if (comm.mesh().coordinate(axis, comm.rank()) != 0) return full;
    }
    const at::Tensor target = seen.token_map.reshape(-1);
    const at::Tensor real = target >= 0;
    full.view(-1).index_put_({target.masked_select(real)}, piece.reshape(-1).masked_select(real));
    return full;
  }
  if (seen.layout.replicas_of(comm.mesh(), comm.rank()).front() != comm.rank()) return full;
  std::vector<at::Tensor> local(shape.size());
  std::vector<at::Tensor> global(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    const at::Tensor index =
        at::tensor(seen.layout.indices(static_cast<int64_t>(d), shape[d], comm.mesh(), comm.rank()),
                   at::kLong);
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
  if (file_names(observation, last_step_).empty()) return;
  kept_.push_back(observation);
  kept_.back().tensor = observation.tensor.detach().clone();
}

void write_dump(const std::string& path, const std::vector<Observation>& kept, const Batch& batch,
                const std::map<std::string, std::vector<int64_t>>& parameter_shapes,
                MeshComm& comm) {
  int64_t last_step = 0;
  for (const Observation& seen : kept) last_step = std::max(last_step, seen.step);
  std::map<std::string, at::Tensor> sums;  // in the same order on every rank
  for (const Observation& seen : kept) {
    std::vector<int64_t> shape;
    if (seen.name == "logprobs") {
      shape = {batch.size(), batch.seq_len()};
    } else if (const size_t dot = seen.name.find('.'); dot != std::string::npos) {
      shape = parameter_shapes.at(seen.name.substr(dot + 1));
    }
    const at::Tensor full = spread(seen, shape, comm);
    for (const std::string& name : file_names(seen, last_step)) {
      const auto [place, fresh] = sums.try_emplace(name, full);
      if (!fresh) place->second = place->second + full;  // microbatches fill different samples
    }
  }
  NamedTensors out;
  for (const auto& [name, tensor] : sums) {
    out.emplace_back(name, comm.world().all_reduce(tensor, ReduceOp::kSum, "dump " + name));
  }
  if (comm.rank() == 0) write_safetensors(path, out, {{"writer", "shardproof"}});
}

}  // namespace shardproof::sim
