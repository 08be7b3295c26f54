// The asynchronous calls of one rank between start and wait(), and the memory that they use.
//
//   start     outputs are filled with a poison: NaN, or the smallest integer; uint8 and bool, whose
//             values are all valid, keep their content
//   wait      an input or a poison that has changed was written in flight
//   any call  may not use memory that an earlier call writes, or write memory that it reads
#pragma once

#include <list>
#include <optional>

#include "sim/world/emulated/collective_math.h"
#include "sim/world/emulated/watched_memory.h"
#include "sim/world/match/agreement.h"

namespace shardproof::sim::world {

// Fills memory with what start() fills outputs with, without a bump of the version counter.
void poison(const at::Tensor& tensor);

// Belongs to one rank's thread.
class InFlight {
 public:
  struct Call {
    shardproof::Call line;
    bool copied = false;
    std::vector<WatchedMemory> inputs, outputs;
  };
  using Handle = std::list<Call>::iterator;

  // The buffers of a call before its start. `outputs` has only those that the caller can access.
  struct Buffers {
    std::vector<at::Tensor> inputs, outputs;
    bool copied = false;  // the inputs are copied, so freeing them is not an error
  };

  // The error of a new call that uses memory of a call in flight.
  std::optional<Finding> clash(const shardproof::Call& line, const Buffers& buffers) const;
  // Poisons the outputs. An input that overlaps an output (a gather in place) is not watched.
  Handle start(const shardproof::Call& line, const Buffers& buffers);
  // Called after the wait, before the outputs get their values. Invalidates the handle.
  std::optional<Finding> finish(Handle call);

 private:
  std::list<Call> calls_;
};

}  // namespace shardproof::sim::world
