// One rank's end of one group of an emulated world, as a c10d::Backend.
#pragma once

#include <cstdint>
#include <memory>

#include "sim/world/emulated/world_state.h"

namespace shardproof::sim {

// Every operation of c10d::Backend that Communicator uses, and their list forms. Asynchronous
// calls: the input is copied at the call and the outputs are written at wait(), unless the notes
// (call_sink.h) say that nobody can see them. Without notes every call is asynchronous, as c10d's
// are.
c10::intrusive_ptr<c10d::Backend> make_emulated_backend(std::shared_ptr<EmulatedWorld::Impl> world,
                                                        std::shared_ptr<EmulatedGroup> group,
                                                        int64_t rank, int64_t generation);

}  // namespace shardproof::sim
