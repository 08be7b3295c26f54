// What workers run, as functions that main gives: launch knows no rank, no golden and no network.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/case/rank_ending.h"
#include "sim/world/match/call_line.h"

namespace shardproof::sim {

// The c10d store at which process ranks meet: in shared memory, or at an address.
struct StorePlace {
  int pages = -1;  // a memfd, borrowed; it outlives the world. -1: at the address
  std::string host = "127.0.0.1";
  int port = 0;
  bool host_it = false;  // this rank hosts it, on that port
  std::string prefix;  // of all keys
};

// A world (or one rank of it) that is to be made in a worker process.
struct WorldSetup {
  std::string backend = "emulated";  // emulated: all ranks here, as threads; gloo, nccl: one rank
  std::string device = "cpu";
  int64_t world_size = 1;
  int64_t rank = -1;       // -1: all of them
  int64_t local_rank = 0;  // on this host: picks the GPU
  StorePlace store = {};   // of process ranks
  // Called on the rank's own thread: when a case starts, before each collective, and (line.waiting)
  // before it waits for an asynchronous one.
  std::function<void(int64_t rank)> on_start = {};
  std::function<void(int64_t rank, const CallLine& line)> on_call = {};
  // A fault that the scenario planted is about to kill the process, on this rank's thread.
  std::function<void(int64_t rank)> before_kill = {};
  // A training step begins, from 1.
  std::function<void(int64_t rank, int64_t step)> on_step = {};
  // A planted fault acts.
  std::function<void(int64_t rank, const FaultNote& note)> on_fault = {};
};

// A world that stays warm between cases.
struct WorldSession {
  // Runs a case (CaseSpec as JSON) to its end. One ending per rank that lives here; never throws
  // for what a rank did.
  std::function<std::vector<RankEnding>(const std::string& request, int golden_fd)> run;
  // From another thread, while run() is under way: ranks that wait for others stop waiting; run()
  // returns soon, with `hung` for those that did not stop. Empty: not supported, the worker is
  // killed.
  std::function<void(const std::string& why)> abort = {};
  // Process ranks: writes a text to the world's store (`value` not empty), or waits until somebody
  // has and returns it. Throws Error(kFailed): no store, nobody wrote.
  std::function<std::string(const std::string& key, const std::string& value)> exchange = {};
};

struct WorkerFunctions {
  // As golden::golden_main.
  std::function<std::string(const std::string& request, int golden_fd,
                            const std::string& dump_path)>
      golden_main;
  std::function<WorldSession(WorldSetup setup)> make_world;
};

}  // namespace shardproof::sim
