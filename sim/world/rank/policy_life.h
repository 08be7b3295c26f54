// Runs a policy's stages on one rank: each is a call of a worker, on the stage's mesh, and the
// judge gets its observations by moments (sim/case/policy_stages.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "policy/worker.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/golden_record.h"
#include "sim/world/rank/case_inputs.h"
#include "sim/world/rank/rank_main.h"

namespace shardproof::sim::world {

class StageProbe;  // stage_probe.h

class PolicyLife {
 public:
  // All arguments must outlive it. `probe` gets observations whose step is the moment. `golden`
  // feeds the optimizer (fed_optimizer.h); null: the optimizer is not tested alone.
  PolicyLife(const CaseSpec& spec, const RankEnv& env, const CaseInputs& inputs,
             const GoldenRecord* golden, CallListener* listener, Probe& probe);
  ~PolicyLife();

  // Called with each trainer and the first moment at which it runs.
  std::function<void(const Trainer&, int64_t)> on_trainer;
  // Runs all stages of each life. Returns the metrics of the last trained global batch.
  StepMetrics run();
  // Those of the last mesh of the last life.
  const Trainer& trainer();
  MeshComm& comm();

 private:
  struct Place;
  class SharedFolder;
  void begin(const ParallelSpec& parallel);
  void begin_life();
  void take_weights();
  void live();
  void run_stage(const StageSpec& stage);
  void train(const StageSpec& stage);
  void interrupt(const StageSpec& stage, TrainCall call);
  void fail(const StageSpec& stage);
  int64_t draw_below(int64_t below);
  void score(const StageSpec& stage);
  void refit();
  void load(const StageSpec& stage);
  void export_weights(const StageSpec& stage);
  void draw();
  void next_moment();
  void feed_optimizer();
  void observe_scores(const std::string& name, const at::Tensor& scores);

  const CaseSpec& spec_;
  const RankEnv& env_;
  const CaseInputs& inputs_;
  const GoldenRecord* golden_;
  CallListener* listener_;
  uint64_t drawn_;  // the last number drawn for failures
  std::unique_ptr<StageProbe> probe_;
  std::unique_ptr<SharedFolder> folder_;
  DrawLog draws_;
  std::unique_ptr<Communicator> receivers_;  // rank 0 and the inference ranks; null elsewhere
  std::unique_ptr<Place> place_;             // the worker and its mesh
  std::vector<at::Tensor> dealt_;  // the first weights, as received; empty: every rank has all
  Batch batch_;
  std::string saved_;
  StepMetrics metrics_;
};

}  // namespace shardproof::sim::world
