// Ranks that torchrun, mpirun or srun started: each connects to the control process beside rank 0
// and is then served like a worker of our own.
//
//   rank 0's process: control, the judge --+-- forks one child before all else, for rank 0
//   every process: its rank, as a child    +-- TCP: hello, lines, heartbeats, endings
//
// Nothing is read or sent on such a connection before both sides have proved that they know the
// run's secret (handshake.h), and every frame after that is sealed (seal.h).
//
// After a case that leaves its ranks in no state to go on (one died, hangs, threw) control tells
// them to end; the processes that the launcher started live on and fork their ranks again (lives.h)
// for the cases that are left.
//
// Control listens at MASTER_ADDR and MASTER_PORT; where torchrun has that port, the address of
// control goes through torchrun's store. Goldens come as a path where both are on one host, else as
// bytes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/owned_fd.h"
#include "sim/world/external/external_place.h"
#include "sim/world/external/hello.h"
#include "sim/world/external/rank_listener.h"
#include "sim/world/process/worker_functions.h"

namespace shardproof::sim::world {

// One rank's process; serves until control says with which status to exit, has gone (3), or cannot
// be found or does not know the secret (3, 2; said on stderr).
[[noreturn]] void serve_external_rank(const ExternalPlace& place, Backend backend,
                                      DeviceKind device, const WorkerFunctions& functions);

// Control's end in rank 0's process: the listening socket, and the child that is rank 0.
class ExternalHost {
 public:
  // Forks rank 0. Before any tensor op and any thread.
  ExternalHost(const ExternalPlace& place, Backend backend, DeviceKind device,
               const WorkerFunctions& functions);
  ~ExternalHost();  // rank 0 has ended
  ExternalHost(const ExternalHost&) = delete;
  ExternalHost& operator=(const ExternalHost&) = delete;

  struct Peer {
    OwnedFd socket;
    ExternalHello hello;
    std::optional<Seals> seals;
    bool same_host = false;
  };
  // Waits until all ranks have connected, and returns them by rank. Calls `stop` repeatedly, which
  // may end the wait. Throws Error(kFailed) after `limit_s`, and names the ranks that did not
  // connect.
  std::vector<Peer> accept_all(double limit_s, const std::function<bool()>& stop);
  // How many connections were refused and from where, in a sentence; "": none.
  std::string refusals() { return listener_->refusals(); }
  const ExternalPlace& place() const { return place_; }

 private:
  ExternalPlace place_;
  std::unique_ptr<RankListener> listener_;
  pid_t child_ = 0;
};

}  // namespace shardproof::sim::world
