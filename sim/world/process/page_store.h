// The store at which the process ranks of one host meet, in shared memory: no
// port, no connection and no name service, which c10d's TCPStore asks for the
// name of each address that it connects to, also for 127.0.0.1, and which may
// take seconds to answer.
//
// The pages are a log of operations that processes append to without a lock and
// replay on their own: all see the same order, and so the same state.
//
//   header            record                            record
//   taken, version    operation, key, value             operation, key, value
//   first ----------> next ---------------------------> next: 0
#pragma once

#include "comm/store.h"

namespace shardproof::sim::world {

// `fd`: a memfd of zeros, of as many bytes as may ever be written to the store. It is mapped, not
// owned. Throws InternalError when it cannot be mapped; set() and the like throw it when the pages
// are full, and wait for nobody, also after a writer was killed. wait() and get() of what nobody
// writes end with the store's timeout.
StorePtr make_page_store(int fd);

}  // namespace shardproof::sim::world
