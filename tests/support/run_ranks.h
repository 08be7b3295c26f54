// Runs a function on every rank of an emulated world, each rank a thread, for tests.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "sim/world/emulated/emulated_world.h"

namespace shardproof::tests {

using RankFunction = std::function<void(MeshComm& comm, int64_t rank)>;

// How each rank of a world ended.
struct RankRuns {
  std::vector<std::exception_ptr> errors;  // per rank, null where it returned
  std::optional<sim::world::Finding> failure;
  std::string error_text(int64_t rank) const;  // "" where it returned
  std::string error_code(int64_t rank) const;  // of an Error, else ""
};

// Throws the exception of the first rank whose failure no abort caused, if any.
void rethrow_first(const RankRuns& runs);

// Calls `run` on a thread for each rank, with one op thread and single-threaded autograd, and waits
// for all.
RankRuns on_threads(int64_t ranks, const std::function<void(int64_t rank)>& run);

// Runs `body` on such threads of a mesh. `listeners` is empty or has one entry per rank.
RankRuns try_emulated_ranks(const Mesh& mesh, const RankFunction& body,
                            const std::vector<CallListener*>& listeners = {});

// The same; then throws the exception of the first rank whose failure no abort caused. Catch2
// assertions are not thread-safe: let the ranks store their values, and check them afterwards.
void run_emulated_ranks(const Mesh& mesh, const RankFunction& body);

}  // namespace shardproof::tests
