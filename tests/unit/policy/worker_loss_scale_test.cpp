#include <catch2/catch.hpp>

#include "tests/unit/policy/small_worker.h"

namespace shardproof::tests::worker_loss_scale_test {
namespace {

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
        comm.world().barrier("before the probe is armed");
        probe.armed = true;
        must_throw("the probe at", [&] { worker.train(six_samples()); });
        MUST(state.scale == 128);
        MUST(state.good_steps == good_steps);
        comm.world().barrier("all have thrown");
        probe.armed = false;
        comm.world().barrier("disarmed");
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

}  // namespace
}  // namespace shardproof::tests::worker_loss_scale_test
