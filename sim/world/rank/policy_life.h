// A policy's life on one rank: a worker that is asked for one stage after another, on one mesh and
// on another, told to the judge by moments (sim/case/policy_stages.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "policy/worker.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/golden_record.h"
#include "sim/world/rank/case_inputs.h"
#include "sim/world/rank/rank_main.h"

namespace shardproof::sim {

class PolicyLife {
 public:
  // What is given outlives it. `probe` hears of everything with the moment as its step. `golden`
  // feeds the optimizer (fed_optimizer.h); null: it is judged running freely only.
  PolicyLife(const CaseSpec& spec, const RankEnv& env, const CaseInputs& inputs,
             const GoldenRecord* golden, CallListener* listener, Probe& probe);
  ~PolicyLife();

  // All stages of all lives. What the last train stage reports of its last global batch.
  StepMetrics run();
  // Of the last life's last mesh.
  const Trainer& trainer();
  MeshComm& comm();

 private:
  class StageProbe;
  struct Place;
  class SharedFolder;
  void begin(const ParallelSpec& parallel);
  void take_weights();
  void live();
  void run_stage(const StageSpec& stage);
  void train(const StageSpec& stage);
  void fail_to_train(const StageSpec& stage);
  void score(const StageSpec& stage);
  void refer(const StageSpec& stage);
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
  std::unique_ptr<StageProbe> probe_;
  std::unique_ptr<SharedFolder> folder_;
  DrawLog draws_;
  std::unique_ptr<Communicator> receivers_;  // rank 0 and the inference ranks; null elsewhere
  std::unique_ptr<Place> place_;             // the mesh that the worker is on, and the worker
  std::vector<at::Tensor> dealt_;  // the first weights as they came there; none: all have them
  Batch batch_;
  std::string saved_;
  StepMetrics metrics_;
};

}  // namespace shardproof::sim
