// A rank's end of the store that control holds (control_store.h), as a c10d store.
#pragma once

#include "comm/store.h"
#include "sim/world/process/control_store.h"

namespace shardproof::sim::world {

// wait() and get() of what nobody writes end with the store's timeout.
StorePtr make_rank_store(AskStore ask);

}  // namespace shardproof::sim::world
