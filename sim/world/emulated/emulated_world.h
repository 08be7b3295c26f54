// A world of N ranks in one process, whose threads meet in collectives.
//
//   rank thread 0 --> EmulatedBackend --+
//   rank thread 1 --> EmulatedBackend --+--> EmulatedWorld: all calls, and the ranks that wait
//   rank thread 2 --> EmulatedBackend --+
//
// Each collective is matched by (group, call number). The member that arrives last computes the
// operation while the others sleep, in group rank order and in a stated accumulation type
// (collective_math.h): results are equal to the bit in every run and schedule. The world is
// stricter than real networks:
//
//   disagreement, deadlock, never_waited   as on every world, at once (sim/world/match/matcher.h)
//   in_flight     a buffer of an asynchronous call was used before its wait() (in_flight.h)
//   threw         a rank ended with an error
//
// The first failure stops the world: every blocked and every later call throws Error(kFailed), with
// the failure's code on the ranks that it names and code "aborted" on the others.
//
// send returns when the receiver has taken the message. CUDA tensors of all ranks are on one
// device; a call waits there for the current streams of all its members.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/mesh_comm.h"
#include "sim/case/schedule_search.h"
#include "sim/case/world_spec.h"
#include "sim/world/match/agreement.h"

namespace shardproof::sim::world {

class RankClock;

class EmulatedWorld {
 public:
  explicit EmulatedWorld(int64_t world_size);
  ~EmulatedWorld();
  EmulatedWorld(const EmulatedWorld&) = delete;
  EmulatedWorld& operator=(const EmulatedWorld&) = delete;

  int64_t world_size() const;
  // Makes this rank's ends of groups, without communication. The world must outlive them.
  BackendFactory factory(int64_t rank);

  // Sets strictness, links and clocks of later cases; the default is WorldSpec's. Call it before
  // the first case, or after reset().
  void configure(const WorldSpec& spec);
  // Used by the rank's thread, or after its end; configure() and reset() replace it.
  RankClock& clock(int64_t rank);

  // A rank's thread may call this at its begin, and then takes turns with the others (run_slots.h).
  void rank_started(int64_t rank);
  // Each rank's thread calls one of these once, at its end. After rank_ended the others continue,
  // unless one needs this rank; rank_threw stops the world.
  void rank_ended(int64_t rank);
  void rank_threw(int64_t rank, const std::string& why);
  // Stops the world from outside, at a deadline or an interrupt.
  void abort(const std::string& code, const std::string& why);

  std::optional<Finding> failure() const;
  // "all_reduce(sum) tp[0,1] [4] float64 'label'": the last call that the rank entered, or "".
  std::string last_call(int64_t rank) const;
  // The number of calls that the rank has entered, as a sign of progress for a watchdog.
  int64_t call_count(int64_t rank) const;

  // Of the case that has ended, if its schedule was an exact one.
  std::optional<ScheduleTrace> schedule_trace() const;

  // Prepares the world for the next case, when every rank has ended. Older backends throw.
  void reset();

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace shardproof::sim::world
