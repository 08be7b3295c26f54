// The asynchronous calls of one rank between their start and their wait(), and the memory that they
// hold meanwhile.
//
//   start     outputs are filled with a poison: NaN, or the smallest integer; uint8 and bool have
//             no value to spare and stay as they are
//   wait      an input that is not as it was, or a poison that is not whole, was written in flight
//   any call  on memory that an earlier one writes, or that it reads and this one writes
#pragma once

#include <list>
#include <optional>

#include "comm/call.h"
#include "sim/world/emulated/collective_math.h"
#include "sim/world/emulated/watched_memory.h"
#include "sim/world/match/finding.h"

namespace shardproof::sim {

// Lives on one rank's thread.
class InFlight {
 public:
  struct Call {
    shardproof::Call line;
    bool copied = false;
    std::vector<WatchedMemory> inputs, outputs;
  };
  using Handle = std::list<Call>::iterator;

  // What `given` are to a call that is about to start. `outputs`: those that the caller can see.
  struct Buffers {
    std::vector<at::Tensor> inputs, outputs;
    bool copied = false;  // the inputs: freeing them hurts nobody
  };

  // A call that would use memory of a call in flight.
  std::optional<Finding> clash(const shardproof::Call& line, const Buffers& buffers) const;
  // Poisons the outputs. An input that overlaps an output (a gather in place) is not watched.
  Handle start(const shardproof::Call& line, const Buffers& buffers);
  // After the wait, before the outputs get their values. The handle is dead afterwards.
  std::optional<Finding> finish(Handle call);

 private:
  std::list<Call> calls_;
};

}  // namespace shardproof::sim
