// The life of one worker process: requests in, endings out, until control closes the channel.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/owned_fd.h"
#include "sim/world/process/worker_functions.h"

namespace shardproof::sim::world {

// What a worker is to be. Travels from control to the zygote as JSON.
struct WorkerSetup {
  bool is_golden = false;  // computes goldens; else it holds ranks
  Backend backend = Backend::kEmulated;
  DeviceKind device = DeviceKind::kCpu;
  int64_t world_size = 1;
  int64_t rank = -1;
  std::string listen_host = "127.0.0.1";
  int64_t node = -1;                 // that this rank is on; -1: no nodes
  double gb_per_s = 0;               // of the node's link; 0: as fast as it can be
  std::string process_name() const;  // as `ps` shows it, at most 15 characters
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WorkerSetup, is_golden, backend, device, world_size, rank,
                                   listen_host, node, gb_per_s)

struct WorkerFds {
  OwnedFd channel;  // to control
  OwnedFd output;   // stdout and stderr of the worker
  OwnedFd board;    // CallBoard; invalid for a golden
  OwnedFd store;    // of process worlds: the pages at which their ranks meet
  OwnedFd lines;    // of process worlds: CallLines
  OwnedFd node_network, switch_network, node_user, relay;  // as NodePlace

  // What a worker may do without, by the name under which its descriptor travels, in that order.
  std::array<std::pair<const char*, OwnedFd*>, 7> optional() {
    return {{{"has_board", &board},
             {"has_store", &store},
             {"has_lines", &lines},
             {"has_node_network", &node_network},
             {"has_switch_network", &switch_network},
             {"has_node_user", &node_user},
             {"has_relay", &relay}}};
  }
};

// What a process that holds a rank sets before it makes groups. Writing to a rank that has died is
// an error that names it (Gloo would let SIGPIPE end the writer). c10d's flight recorder is off
// unless the user sets TORCH_FR_BUFFER_SIZE: this program traces calls itself, and the recorder
// adds groups to a map without a lock.
void prepare_rank_process();

// Called in the forked child, while it is single-threaded; ends the process.
[[noreturn]] void worker_main(const WorkerFunctions& functions, const WorkerSetup& setup,
                              WorkerFds fds);

// What the current exception says, in a catch block: the one place that tells exceptions apart.
struct ExceptionFacts {
  ResultKind kind = ResultKind::kNone;
  std::string message = {};  // without a backtrace
  bool shortage = false;     // the machine lacks something: bad input, as it is for a golden
};
// `otherwise` is the kind of exceptions that are none of ours.
ExceptionFacts facts_of_exception(ResultKind otherwise);

// In a catch block, when a session could not be made or fell over: the same ending for every rank
// of this process (`only_rank`, or all of the world when it is -1).
std::vector<RankEnding> endings_of_exception(int64_t only_rank, int64_t world_size);

// The outcome of a golden, which kTaskDone carries as JSON.
struct TaskOutcome {
  bool ok = false;
  golden::GoldenSize golden = {};
  ResultKind kind = ResultKind::kNone;  // when !ok
  std::string message = {};
};
// Whether something outside ended the golden's process, or kept it from going on.
inline bool was_ended(const TaskOutcome& golden) {
  return golden.kind == ResultKind::kDied || golden.kind == ResultKind::kHung;
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TaskOutcome, ok, golden, kind, message)

}  // namespace shardproof::sim::world
