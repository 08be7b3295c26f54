// A world of N ranks inside one process: rank threads that meet in collectives.
//
//   rank thread 0 --> EmulatedBackend --+
//   rank thread 1 --> EmulatedBackend --+--> EmulatedWorld: who has called what, who waits for whom
//   rank thread 2 --> EmulatedBackend --+
//
// Each collective is matched by (group, call number). The member that arrives last does the whole
// operation while the others sleep, in group rank order and in a stated accumulation type
// (collective_math.h): results are the same to the bit in every run and schedule. Strict where real
// networks forgive:
//
//   disagreement, deadlock, never_waited   as on every world, at once (sim/world/match/matcher.h)
//   in_flight     a buffer of an asynchronous call was used before its wait() (in_flight.h)
//   threw         a rank ended with an error
//
// The first failure stops the world: every blocked and every later call throws Error(kFailed), with
// the failure's code on the ranks that it names and code "aborted" on the others.
//
// send and recv meet: send returns when the message has been taken. CUDA tensors of all ranks live
// on one device; a call waits, on the device, for the current streams of all its members.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "sim/world/match/finding.h"

namespace shardproof::sim {

class RankClock;
struct WorldSpec;

class EmulatedWorld {
 public:
  explicit EmulatedWorld(int64_t world_size);
  ~EmulatedWorld();
  EmulatedWorld(const EmulatedWorld&) = delete;
  EmulatedWorld& operator=(const EmulatedWorld&) = delete;

  int64_t world_size() const;
  // Makes this rank's end of groups, without communicating. The world must outlive what it makes.
  BackendFactory factory(int64_t rank);

  // Strictness, links and clocks of the cases from here on; without it the defaults of WorldSpec.
  // Before the first case, or after reset().
  void configure(const WorldSpec& spec);
  // To be used by the rank's own thread, or when it has ended; new after configure() and reset().
  RankClock& clock(int64_t rank);

  // A rank thread that says so before it begins takes its turn with the others (run_slots.h).
  void rank_started(int64_t rank);
  // Each rank thread says that it is done, exactly once. The first: it returned; its peers may go
  // on unless one of them needs it. The second: it threw, which stops the world.
  void rank_ended(int64_t rank);
  void rank_threw(int64_t rank, const std::string& why);
  // Stops the world from outside (a deadline, an interrupt).
  void abort(const std::string& code, const std::string& why);

  std::optional<Finding> failure() const;
  // "all_reduce(sum) tp[0,1] [4] float64 'label'": the last call that the rank entered, "" for
  // none.
  std::string last_call(int64_t rank) const;
  // Calls that the rank has entered; a watchdog looks whether it moves.
  int64_t call_count(int64_t rank) const;

  // Makes the world new for the next case. Only when every rank has ended; backends made before
  // throw.
  void reset();

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace shardproof::sim
