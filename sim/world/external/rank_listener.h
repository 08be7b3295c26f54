// The door to control: takes in callers that prove the secret (handshake.h), several at a time, and
// counts the others. One that is silent keeps nobody waiting.
#pragma once

#include <chrono>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/world/external/connection.h"
#include "sim/world/external/handshake.h"

namespace shardproof::sim::world {

class RankListener {
 public:
  // A caller has `patience` to prove the secret.
  RankListener(ListeningSocket listening, std::string secret, int64_t world_size,
               std::chrono::milliseconds patience = std::chrono::seconds(5));

  struct Rank {
    OwnedFd socket;
    int64_t rank = -1;
    Seals seals;
  };
  // Those that have proved the secret since the last call; waits until somebody calls or says
  // something, at most so long.
  std::vector<Rank> take(std::chrono::milliseconds limit);

  // Serves whoever has called by now. Then: how many were refused and from where, and which
  // ranks of another WORLD_SIZE, in a sentence; "" nobody.
  std::string refusals();

  const NetAddress& address() const { return listening_.address; }

 private:
  struct Caller {
    OwnedFd socket;
    std::string host;
    ControlHandshake handshake;
    std::chrono::steady_clock::time_point called;
    std::string answer = {};
  };
  void serve(std::chrono::milliseconds limit);
  void admit();
  bool settled(Caller& caller);  // taken in or refused

  ListeningSocket listening_;
  std::string secret_;
  int64_t world_size_;
  std::chrono::milliseconds patience_;
  std::list<Caller> callers_;  // that have neither proved themselves nor been refused
  std::vector<Rank> proved_;
  std::map<std::string, int64_t> refused_;  // by host
  std::set<std::string> others_;            // ranks with the secret of another world, in words
};

}  // namespace shardproof::sim::world
