// Worlds of ranks and the workers beside them, as the control process sees them.
//
//   control --socket--> zygote --fork--> worker: one emulated world (N rank threads),
//                                                one Gloo rank,
//                                                a golden
//
// Worlds and goldens stay warm between cases. A world is used again only after a case in which all
// ranks finished or all refused before the first collective, and never after one with faults.
// However a case or the launcher ends, no process is left
// (tests/unit/world/launch/no_orphan_test.cpp).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/rank_ending.h"
#include "sim/world/external/external_rank.h"
#include "sim/world/launch/world_run.h"
#include "sim/world/process/worker_functions.h"
#include "sim/world/process/worker_main.h"

namespace shardproof::sim::world {

struct WorldKey;

class WorldPool {
 public:
  // Forks the zygote. Call it on the main thread, before any tensor op and any other thread. From
  // here on SIGINT and SIGTERM interrupt the pool and not the program.
  explicit WorldPool(WorkerFunctions functions);
  ~WorldPool();  // everything has ended and is reaped
  WorldPool(const WorldPool&) = delete;
  WorldPool& operator=(const WorldPool&) = delete;

  // Runs the golden in a worker of its own; the blob is written to `golden_fd` (a memfd or file).
  TaskOutcome run_golden(const CaseSpec& spec, golden::Members members, int golden_fd,
                         const std::string& dump_path);
  // Runs a case on a world of spec.parallel.world_size() ranks, warm unless `fresh`. One ending per
  // rank, in rank order.
  std::vector<RankEnding> run_case(const CaseSpec& spec, int golden_fd, bool fresh);
  // SIGINT or SIGTERM came: what was under way has ended, and what is started ends at once.
  bool interrupted() const;

  // The same without waiting, several at a time. `done` is called once from wait_until, on the
  // calling thread; a case's `done` says whether its world may be used again, should it be
  // reusable.
  void start_golden(const CaseSpec& spec, golden::Members members, int golden_fd,
                    const std::string& dump_path, std::function<void(TaskOutcome)> done);
  void start_case(const CaseSpec& spec, int golden_fd, bool fresh,
                  std::function<bool(WorldRun)> done);
  // Calls `work` from wait_until, after what calls this has returned.
  void post(std::function<void()> work);
  // Cases run on the ranks that another launcher started, from now on and only there; after a case
  // that ended them they start again. `host` must outlive the last case. Waits until all have come.
  // Throws Error(kFailed): some did not.
  void adopt(ExternalHost& host, Backend backend, DeviceKind device);
  // Tells those ranks to exit with this status, and waits until they have.
  void dismiss(int status);

  // From now on a wait that takes a second says on standard error what it waits for, and again
  // every ten seconds.
  void say_waits();

  // Serves whatever is under way until this is so. Looks after each event.
  void wait_until(const std::function<bool()>& satisfied);

 private:
  void take_in(const WorldKey& key, double patience_s);
  std::optional<std::string> remake_external(double patience_s);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardproof::sim::world
