// What one rank does with one case; the same function as a thread and as a process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"

namespace shardproof::sim {

class CaseInputsCache;
class RankClock;

// What the world gives a rank. The world sets at::set_num_threads(1) and turns multithreaded
// autograd off on the rank's thread before it calls rank_main.
struct RankEnv {
  int64_t rank = 0;
  int64_t world_size = 1;
  BackendFactory make_backend;  // groups of this world; may be called again in a later case
  std::string device = "cpu";
  int golden_fd = -1;                 // the golden's blob; -1: not judged
  CaseInputsCache* inputs = nullptr;  // shared by the ranks of this process; null: load on its own
  // Called before each collective with its line (for watchdogs and matching); cheap.
  std::function<void(const Call&)> on_call = {};
  // Called before the rank waits for an asynchronous one.
  std::function<void(const Call&)> on_wait = {};
  RankClock* clock = nullptr;  // the rank's virtual clock; null: time is wall time
  // Called as a training step begins, from 1.
  std::function<void(int64_t step)> on_step = {};
};

// `request` is a CaseSpec as JSON text. Returns an encoded RankReport. Throws Error(kRefused,
// kBadInput) before the first collective; Error(kFailed) when the world was aborted under it.
std::string rank_main(const std::string& request, const RankEnv& env);

}  // namespace shardproof::sim
