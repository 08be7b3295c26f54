// One rank's run of a case; threads and processes call the same function.
#pragma once

#include <functional>
#include <string>

#include "comm/mesh_comm.h"
#include "sim/case/case_spec.h"

namespace shardproof {
struct Observation;
}

namespace shardproof::sim::world {

class CaseInputsCache;
class RankClock;

// The world of a rank. Before it calls rank_main, the world sets at::set_num_threads(1) and turns
// multithreaded autograd off on the rank's thread.
struct RankEnv {
  int64_t rank = 0;
  int64_t world_size = 1;
  BackendFactory make_backend;  // groups of this world; may be called again in a later case
  std::string device = "cpu";
  int golden_fd = -1;                 // the golden's blob; -1: without a comparison
  CaseInputsCache* inputs = nullptr;  // shared by the ranks of this process; rank_main needs it
  // Called before each collective (for watchdogs and matching); must be fast.
  std::function<void(const Call&)> on_call = {};
  // Called before the rank waits for an asynchronous call.
  std::function<void(const Call&)> on_wait = {};
  RankClock* clock = nullptr;  // the rank's virtual clock; null: time is wall time
  // Called when a training step begins; steps count from 1.
  std::function<void(int64_t step)> on_step = {};
  // Called with each tensor before the judge gets it; false: the judge does not get it.
  std::function<bool(const Observation&)> on_tensor = {};
  // Called before each action of a microbatch with its token map (StepRunner::watch_tokens).
  std::function<void(const at::Tensor& token_map)> on_tokens = {};
};

// Returns an encoded RankReport. Throws Error(kRefused or kBadInput) before the first collective,
// and Error(kFailed) when the world is aborted.
std::string rank_main(const CaseSpec& spec, const RankEnv& env);

}  // namespace shardproof::sim::world
