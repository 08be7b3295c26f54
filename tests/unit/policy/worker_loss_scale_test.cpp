#include <catch2/catch.hpp>
#include <filesystem>

#include "base/read_text.h"
#include "policy/checkpoint.h"
#include "tests/support/scratch_folder.h"
#include "tests/unit/policy/small_worker.h"

namespace shardproof::tests::worker_loss_scale_test {
namespace {

namespace fs = std::filesystem;

WorkerTrial half_precision() {
  WorkerTrial trial{.dtype = at::kHalf};
  trial.options.train.loss_scale = {.enabled = true, .init_scale = 128, .growth_interval = 2};
  return trial;
}

TEST_CASE("a step that throws leaves the loss scale and its good steps as they were",
          "[policy][PW-1][PW-2]") {
  ThrowingProbe probe;
  probe.phase = Phase::kStep;
  WorkerTrial trial = half_precision();
  trial.probe = &probe;
  for (const char* place : {"grad.model.norm.weight", "grad_norm"}) {
    probe.end_of_name = place;
    with_workers(trial, [&](PolicyWorker& worker, MeshComm& comm, int64_t) {
      const LossScaleState& state = worker.trainer().loss_scale();
      for (int64_t good_steps = 0; good_steps < 2; ++good_steps) {
        while_armed(probe, comm, [&] { worker.train(six_samples()); });
        MUST(state.scale == 128);
        MUST(state.good_steps == good_steps);
        worker.train(six_samples());
      }
      MUST(state.scale == 256);
      MUST(state.good_steps == 0);
    });
  }
}

TEST_CASE("a worker that begins anew begins with the first loss scale", "[policy][PW-1][PW-5]") {
  with_workers(half_precision(), [&](PolicyWorker& worker, MeshComm&, int64_t) {
    const std::vector<at::Tensor> masters = worker.trainer().masters();
    for (int step = 0; step < 3; ++step) worker.train(six_samples());
    const LossScaleState& state = worker.trainer().loss_scale();
    MUST(state.scale == 256);
    MUST(state.good_steps == 1);
    worker.begin_with(masters);
    MUST(state.scale == 128);
    MUST(state.good_steps == 0);
  });
}

TEST_CASE("a load without a saved loss scale begins with the first one", "[policy][PW-1][PW-8]") {
  const sim::ScratchFolder root;
  const std::string scaled = root.path() + "/scaled", unscaled = root.path() + "/unscaled";
  const auto save_by = [](const WorkerTrial& trial, const std::string& folder, int steps) {
    with_workers(trial, [&](PolicyWorker& worker, MeshComm&, int64_t) {
      for (int step = 0; step < steps; ++step) worker.train(six_samples());
      worker.save(folder);
    });
  };
  const WorkerTrial single_precision{.dtype = at::kFloat};
  save_by(single_precision, unscaled, 1);
  save_by(half_precision(), scaled, 3);
  with_workers(half_precision(), [&](PolicyWorker& worker, MeshComm&, int64_t) {
    const LossScaleState& state = worker.trainer().loss_scale();
    worker.load(*latest_checkpoint(unscaled));
    MUST(state.scale == 128);
    worker.load(*latest_checkpoint(scaled));
    MUST(state.scale == 256);
    MUST(state.good_steps == 1);
    worker.load(*latest_checkpoint(unscaled));
    MUST(state.scale == 128);
    MUST(state.good_steps == 0);
    worker.train(six_samples());
  });
  // A run without loss scaling neither takes a scale nor passes one on.
  with_workers(single_precision, [&](PolicyWorker& worker, MeshComm&, int64_t) {
    worker.load(*latest_checkpoint(scaled));
    MUST(worker.trainer().loss_scale().scale == 1);
    worker.train(six_samples());
    worker.save(unscaled);
  });
  CHECK(fs::path(*latest_checkpoint(unscaled)).filename() == "step_00000004");
  CHECK_FALSE(
      read_json_object(*latest_checkpoint(unscaled) + "/state.json").contains("loss_scale"));
}

}  // namespace
}  // namespace shardproof::tests::worker_loss_scale_test
