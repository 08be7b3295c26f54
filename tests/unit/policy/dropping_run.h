// A training run with dropout and a schedule, whose random streams continue from a checkpoint.
#pragma once

#include <memory>

#include "model/wrapped_layer.h"
#include "policy/checkpoint.h"
#include "random/region_dropout.h"
#include "random/rng_seeds.h"
#include "tests/support/scratch_folder.h"
#include "tests/unit/train/small_run.h"

namespace shardproof::tests {

class DroppedOutput final : public WrappedLayer {
 public:
  DroppedOutput(std::unique_ptr<Layer> inner, HeldOverTp held, RngTracker& rng)
      : WrappedLayer(std::move(inner)), held_(held), rng_(rng) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    return region_dropout(inner_->forward(inputs, context), 0.25, held_, rng_, "dropped");
  }

 private:
  HeldOverTp held_;
  RngTracker& rng_;
};

// Adds dropout to the output of every MLP, which all tp ranks hold equally, and with `parts` to
// attention, of which each rank holds its own heads.
inline void drop_outputs(Decoder& model, bool parts, RngTracker& rng) {
  const auto drop = [&](const std::string& name, HeldOverTp held) {
    std::unique_ptr<Layer>& layer = model.slot(name).layer;
    layer = std::make_unique<DroppedOutput>(std::move(layer), held, rng);
  };
  for (int64_t i = 0; i < model.config().num_hidden_layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    drop(prefix + "mlp.down_proj", HeldOverTp::kAlike);
    if (parts) drop(prefix + "self_attn.attention", HeldOverTp::kParts);
  }
}

inline RngTracker seeded_streams(const Mesh& mesh, int64_t rank) {
  RngTracker rng;
  seed_streams(rng, 12, {.tp_rank = mesh.coordinate("tp", rank), .tp_size = mesh.size("tp")});
  return rng;
}

// The rate falls to a fifth of the trial's, then follows a cosine.
inline ScheduleOptions some_schedule() {
  return {.stages = {{.kind = ScheduleKind::kLinear,
                      .start_factor = 1.0,
                      .end_factor = 0.2,
                      .total_iters = 3},
                     {.kind = ScheduleKind::kCosine, .t_max = 5}},
          .milestones = {3}};
}

struct DroppingRun {
  Trial trial = {};
  bool parts = false;                         // drops attention too
  std::string load = {};                      // a checkpoint from which training continues
  bool restores_streams = true;               // from that checkpoint
  std::string save = {};                      // the path of a new checkpoint
  std::string tokenizer = {};                 // is saved in it
  std::vector<LoadedCheckpoint> loaded = {};  // by rank
  std::vector<RngStates> ended = {};          // the streams after the steps, by rank

  Trained run() {
    const auto ranks = static_cast<size_t>(trial.mesh.world_size());
    std::vector<std::unique_ptr<RngTracker>> streams(ranks);
    loaded.resize(ranks);
    ended.resize(ranks);
    Trial with_dropout = trial;
    with_dropout.steps = 0;
    with_dropout.options.schedule = some_schedule();
    with_dropout.prepare = [&](Decoder& model, int64_t rank) {
      auto& rng = streams[static_cast<size_t>(rank)];
      rng = std::make_unique<RngTracker>(seeded_streams(trial.mesh, rank));
      drop_outputs(model, parts, *rng);
    };
    return train_with(with_dropout, [&](Trainer& trainer, MeshComm& comm) {
      const auto rank = static_cast<size_t>(comm.rank());
      RngTracker& rng = *streams[rank];
      if (!load.empty()) {
        loaded[rank] = load_checkpoint(load, trainer, comm, restores_streams ? &rng : nullptr);
      }
      for (int64_t i = 0; i < trial.steps; ++i) trainer.step(small_batch());
      ended[rank] = rng.states();
      if (save.empty()) return;
      save_checkpoint(
          save, trainer, comm,
          {.rng = &rng, .data_position = 5 * trainer.step_count(), .tokenizer_folder = tokenizer});
    });
  }
};

}  // namespace shardproof::tests
