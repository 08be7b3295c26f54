// A decoder that is trained on any mesh, with any kind of data parallelism.
#pragma once

#include <functional>

#include "parallel/registry/styles.h"
#include "tensor/shard.h"
#include "tests/support/rank_results.h"
#include "train/trainer.h"

namespace shardproof::tests {

// Dim 0 of the parameters is 29, 10, 24, 12 or 14; no world of 2 to 6 ranks divides all of them.
inline ModelConfig small_model() {
  ModelConfig config;
  config.vocab_size = 29;
  config.hidden_size = 10;
  config.intermediate_size = 14;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 3;
  config.head_dim = 4;
  config.attention_bias = true;
  return config;
}

inline Batch small_batch() {
  return seeded_batch({.batch_size = 5,
                       .seq_len = 12,
                       .lengths = {12, 5, 9, 3, 11},
                       .vocab_size = small_model().vocab_size,
                       .seed = 6});
}

struct Trial {
  Mesh mesh = Mesh::training({.dp = 3});
  TrainOptions options = {};
  ParallelOptions parallel = {};
  std::optional<ParallelStyles> styles = {};  // none: make_styles(parallel)
  at::ScalarType dtype = at::kDouble;
  int64_t steps = 2;
  ModelConfig config = small_model();
  Probe* probe = nullptr;  // of every rank, on threads of all ranks; may be null
  std::vector<CallListener*> listeners = {};
  std::function<void(Decoder&, int64_t rank)> prepare = {};  // after the plans; may be empty
};

// `nobody` must outlive what is made with the setup.
template <class AnyTrial>
RankSetup setup_of(const AnyTrial& trial, MeshComm& comm, int64_t rank, NoProbe& nobody) {
  return {.mesh = trial.mesh,
          .rank = rank,
          .comm = comm,
          .probe = trial.probe ? *trial.probe : nobody,
          .dtype = trial.dtype,
          .device = at::kCPU};
}

// Calls `work` on one rank with a trainer.
inline void with_trainer(const Trial& trial, MeshComm& comm, int64_t rank,
                         const std::function<void(Trainer&)>& work) {
  NoProbe nobody;
  Decoder model(trial.config, seeded_weights(trial.config, 3));
  const ParallelStyles styles = trial.styles.value_or(make_styles(trial.parallel));
  styles.apply(model, comm);
  if (trial.prepare) trial.prepare(model, rank);
  const RankSetup setup = setup_of(trial, comm, rank, nobody);
  Trainer trainer(setup, model, styles, trial.options);
  work(trainer);
}

// Every parameter after the steps, assembled from all ranks' shards, and each step's loss and norm
// by rank 0.
struct Trained {
  std::map<std::string, at::Tensor> parameters;
  std::vector<StepMetrics> metrics;
};

// The shards of all parameters of a trainer on each rank of a mesh.
class RanksShards {
 public:
  explicit RanksShards(const Mesh& mesh)
      : mesh_(mesh), shards_(static_cast<size_t>(mesh.world_size())) {}
  void keep(const Trainer& trainer, int64_t rank) {
    for (const at::Tensor& master : trainer.masters()) {
      shards_[static_cast<size_t>(rank)].push_back(master.clone());
    }
    if (rank == 0) parameters_ = trainer.parameters();
  }
  std::map<std::string, at::Tensor> whole_parameters() const {
    std::map<std::string, at::Tensor> whole;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Parameter& parameter = *parameters_[i];
      std::vector<at::Tensor> pieces;
      for (const auto& of_rank : shards_) pieces.push_back(of_rank[i]);
      whole[parameter.name] = reassemble(pieces, parameter.global_shape, parameter.layout, mesh_);
    }
    return whole;
  }

 private:
  Mesh mesh_;
  std::vector<std::vector<at::Tensor>> shards_;
  std::vector<ParameterPtr> parameters_;
};

// Calls `work` on every rank, then returns the parameters.
inline Trained train_with(const Trial& trial,
                          const std::function<void(Trainer&, MeshComm&)>& work) {
  RanksShards shards(trial.mesh);
  rethrow_first(try_emulated_ranks(
      trial.mesh,
      [&](MeshComm& comm, int64_t rank) {
        with_trainer(trial, comm, rank, [&](Trainer& trainer) {
          work(trainer, comm);
          shards.keep(trainer, rank);
        });
      },
      trial.listeners));
  return {.parameters = shards.whole_parameters(), .metrics = {}};
}

inline Trained train(const Trial& trial) {
  std::vector<StepMetrics> metrics;
  Trained trained = train_with(trial, [&](Trainer& trainer, MeshComm& comm) {
    for (int64_t i = 0; i < trial.steps; ++i) {
      const StepMetrics step = trainer.step(small_batch());
      if (comm.rank() == 0) metrics.push_back(step);
    }
  });
  trained.metrics = metrics;
  return trained;
}

// "" if all tensors agree within `tolerance` of their scale, else the first difference.
inline std::string difference(const Trained& golden, const Trained& actual, double tolerance) {
  for (const auto& [name, tensor] : golden.parameters) {
    const auto found = actual.parameters.find(name);
    if (found == actual.parameters.end()) return name + " is missing";
    const std::string here = difference(tensor, found->second, tolerance);
    if (!here.empty()) return name + " " + here;
  }
  for (size_t i = 0; i < std::min(golden.metrics.size(), actual.metrics.size()); ++i) {
    const auto close = [&](double a, double b) {
      return std::abs(a - b) <= tolerance * std::abs(a);
    };
    if (!close(golden.metrics[i].loss, actual.metrics[i].loss)) return "loss";
    if (!close(golden.metrics[i].grad_norm, actual.metrics[i].grad_norm)) return "norm";
  }
  return "";
}

inline FsdpOptions fsdp() { return {.kind = DataParallelKind::kFsdp}; }

}  // namespace shardproof::tests
