// One rank's end of one group of an emulated world, as a c10d::Backend.
#pragma once

#include <cstdint>
#include <memory>

#include "sim/world/emulated/world_state.h"

namespace shardproof::sim::world {

// Has every operation of c10d::Backend that Communicator uses, and their list forms. The input of
// an asynchronous call is copied at the call, and its outputs are written at wait(), unless the
// notes (call_sink.h) say that they are private. A call without notes is asynchronous, as in c10d.
c10::intrusive_ptr<c10d::Backend> make_emulated_backend(std::shared_ptr<EmulatedWorld::Impl> world,
                                                        std::shared_ptr<EmulatedGroup> group,
                                                        int64_t rank, int64_t generation);

}  // namespace shardproof::sim::world
