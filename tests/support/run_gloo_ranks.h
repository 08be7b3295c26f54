// Runs a function on every rank of a Gloo world whose ranks are threads of this process, for tests.
#pragma once

#include <chrono>

#include "tests/support/run_ranks.h"

namespace shardproof::tests {

// As try_emulated_ranks; the ranks meet in one in-memory store and communicate over loopback
// sockets.
RankRuns try_gloo_ranks(const Mesh& mesh, const RankFunction& body,
                        std::chrono::milliseconds timeout = std::chrono::seconds(30),
                        const std::vector<CallListener*>& listeners = {});
void run_gloo_ranks(const Mesh& mesh, const RankFunction& body);

}  // namespace shardproof::tests
