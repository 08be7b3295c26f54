// What workers run, as functions that main gives: launch knows no rank, no golden and no network.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/rank_ending.h"
#include "sim/case/runners.h"
#include "sim/world/match/call_line.h"
#include "sim/world/process/control_store.h"

namespace shardproof::sim::world {

// The c10d store at which process ranks meet: in shared memory, or held by control.
struct StorePlace {
  int pages = -1;  // a memfd, borrowed; it outlives the world
  AskStore ask = {};
};

// Cuts or slows the link of a rank's node as the fault says, and returns a description of that.
using ChangeLink = std::function<std::string(const FaultSpec& fault)>;

// The namespaces that the process of a rank moves into: its node's network, the switch that joins
// the nodes, and the user namespace that owns them (-1: that of the program). Borrowed.
struct NodePlace {
  int64_t node = 0;
  int network = -1, network_of_switch = -1, user = -1;
  int relay = -1;       // settings of the relays of all links (nodes/relay.h); -1: no relays
  double gb_per_s = 0;  // of the node's link; 0: as fast as it can be
};

// Called on the rank's own thread.
struct RankHooks {
  std::function<void(int64_t rank)> on_start = {};  // a case starts
  // Called before each call and, with line.waiting, before a wait for an asynchronous one.
  std::function<void(int64_t rank, const CallLine& line)> on_call = {};
  std::function<void(int64_t rank)> before_kill = {};  // a planted fault will kill the process
  std::function<void(int64_t rank, const FaultNote& note)> on_fault = {};  // a planted fault acts
  std::function<void(int64_t rank, int64_t step)> on_step = {};  // a training step begins, from 1
  // Does what a planted fault does to the link of this rank's node. Empty: no node has a link.
  ChangeLink change_link = {};
};

// A world (or one rank of it) that is to be made in a worker process.
struct WorldSetup {
  Backend backend = Backend::kEmulated;  // all ranks here, as threads; else one rank
  DeviceKind device = DeviceKind::kCpu;
  int64_t world_size = 1;
  int64_t rank = -1;                      // -1: all of them
  int64_t local_rank = 0;                 // on this host: picks the GPU
  StorePlace store = {};                  // of process ranks
  std::string listen_host = "127.0.0.1";  // of process ranks: where Gloo listens
  RankHooks hooks = {};
};

// A world that stays warm between cases.
struct WorldSession {
  // Runs a case to its end. One ending per rank of this process; never throws for what a rank did.
  std::function<std::vector<RankEnding>(const CaseSpec& spec, int golden_fd)> run;
  // From another thread, while run() is under way: ranks that wait for others stop waiting; run()
  // returns soon, with `hung` for those that did not stop. Empty: not supported, the worker is
  // killed.
  std::function<void(const std::string& why)> abort = {};
};

// A store over TCP that a launcher holds.
struct LauncherStore {
  std::string host;
  int port = 0;
  std::chrono::seconds limit{0};  // to reach it, and then for an entry
};

struct WorkerFunctions {
  // As golden::golden_main.
  std::function<golden::GoldenSize(const CaseSpec& spec, golden::Members members, int golden_fd,
                                   const std::string& dump_path)>
      golden_main;
  std::function<WorldSession(const WorldSetup& setup)> make_world;
  // Moves this process into its node, while it has one thread.
  std::function<ChangeLink(const NodePlace& place)> enter_node = {};
  // Writes a text to a launcher's store (`value` not empty), or waits until somebody has and
  // returns it. Throws Error(kFailed): no store, nobody wrote.
  std::function<std::string(const LauncherStore& store, const std::string& key,
                            const std::string& value)>
      exchange = {};
};

}  // namespace shardproof::sim::world
