// Worlds of ranks and the workers beside them, as the control process sees them.
//
//   control --socket--> zygote --fork--> worker: one emulated world (N rank threads), one Gloo rank,
//                                        a golden, a judge
//
// design.md section 5 says who may do what and how everything ends.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sim/compare/verdict.h"
#include "sim/scenario/case_spec.h"

namespace shardproof::sim {

struct RankEnv;

// The functions that workers run, given by main so that launch knows no rank and no golden.
struct WorkerFunctions {
  std::function<std::string(const std::string& request, const RankEnv& env)> rank_main;
  std::function<std::string(const std::string& request, int golden_fd, const std::string& dump_path)>
      golden_main;
};

struct TaskOutcome {
  bool ok = false;
  std::string result;   // what the function returned
  std::string kind;     // when !ok: bad_input | refused | internal | died | hung
  std::string message;
};

class WorldPool {
 public:
  // Forks the zygote. Call it before any tensor op and any thread.
  explicit WorldPool(WorkerFunctions functions);
  ~WorldPool();  // ends and reaps everything

  // Runs the golden in a worker of its own; the blob is written to `golden_fd` (a memfd or file).
  TaskOutcome run_golden(const std::string& request, int golden_fd, const std::string& dump_path);
  // Runs a case on a world of spec.parallel.world_size() ranks, warm if the reuse rule allows and
  // `fresh` is false. One ending per rank.
  std::vector<RankEnding> run_case(const CaseSpec& spec, int golden_fd, bool fresh);
  // Set by SIGINT or SIGTERM: run_* returns early, everything is ended.
  bool interrupted() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardproof::sim
