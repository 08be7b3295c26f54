// One policy on any mesh, with a worker for each rank. Ranks report problems as exceptions, because
// Catch2's checks work on one thread only.
#pragma once

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>

#include "policy/worker.h"
#include "tests/unit/train/small_run.h"

namespace shardproof::tests {

inline void must(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string("it does not hold that ") + what);
}
#define MUST(condition) must((condition), #condition)

// Throws unless `work` throws an error that contains `text`.
inline void must_throw(const char* text, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (std::string(error.what()).find(text) != std::string::npos) return;
    throw;
  }
  throw std::runtime_error(std::string("nothing was thrown that says ") + text);
}

struct WorkerTrial {
  Mesh mesh = Mesh::training({.dp = 2});
  PolicyOptions options = {};
  at::ScalarType dtype = at::kDouble;
  Probe* probe = nullptr;  // of every rank; may be null
};

// Calls `work` on one rank with a worker.
inline void with_worker(const WorkerTrial& trial, MeshComm& comm, int64_t rank,
                        const std::function<void(PolicyWorker&)>& work) {
  NoProbe nobody;
  const RankSetup setup = setup_of(trial, comm, rank, nobody);
  PolicyWorker worker(setup, small_model(), seeded_weights(small_model(), 3), trial.options);
  work(worker);
}

// Calls `work` on every rank with its worker, then returns the parameters.
inline Trained with_workers(
    const WorkerTrial& trial,
    const std::function<void(PolicyWorker&, MeshComm&, int64_t rank)>& work) {
  RanksShards shards(trial.mesh);
  run_emulated_ranks(trial.mesh, [&](MeshComm& comm, int64_t rank) {
    with_worker(trial, comm, rank, [&](PolicyWorker& worker) {
      work(worker, comm, rank);
      if (worker.report().alive) shards.keep(worker.trainer(), rank);
    });
  });
  return {.parameters = shards.whole_parameters(), .metrics = {}};
}

inline Batch six_samples() {
  return seeded_batch({.batch_size = 6,
                       .seq_len = 12,
                       .lengths = {12, 5, 9, 3, 11, 7},
                       .vocab_size = small_model().vocab_size,
                       .seed = 6});
}

// While armed, throws on every rank at an observation whose name ends so.
class ThrowingProbe final : public Probe {
 public:
  bool listens(Phase) const override { return true; }
  void observe(const Observation& observation) override {
    if (armed && observation.phase == phase && observation.microbatch == microbatch &&
        observation.name.ends_with(end_of_name)) {
      throw std::runtime_error("the probe at " + observation.name);
    }
  }
  std::atomic<bool> armed = false;
  Phase phase = Phase::kForward;
  int64_t microbatch = 0;
  std::string end_of_name;
};

// Calls `work` on every rank while the probe is armed.
inline void while_armed(ThrowingProbe& probe, MeshComm& comm, const std::function<void()>& work) {
  comm.world().barrier("before the probe is armed");
  probe.armed = true;
  must_throw("the probe at", work);
  comm.world().barrier("all have thrown");
  probe.armed = false;
  comm.world().barrier("disarmed");
}

}  // namespace shardproof::tests
