#include "tests/support/run_ranks.h"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>

#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "comm/gloo_backend.h"
#include "comm/store.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {
namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  } catch (...) {
    return "unknown exception";
  }
}

CallListener* listener_of(const std::vector<CallListener*>& listeners, int64_t rank) {
  return listeners.empty() ? nullptr : listeners.at(static_cast<size_t>(rank));
}

}  // namespace

std::string RankRuns::error_text(int64_t rank) const {
  const auto& error = errors.at(static_cast<size_t>(rank));
  return error ? text_of(error) : "";
}

std::string RankRuns::error_code(int64_t rank) const {
  const auto& error = errors.at(static_cast<size_t>(rank));
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& caught) {
    return caught.code();
  } catch (...) {
  }
  return "";
}

RankRuns on_threads(int64_t ranks, const std::function<void(int64_t rank)>& run) {
  RankRuns runs;
  runs.errors.resize(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
      try {
        run(rank);
      } catch (...) {
        runs.errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return runs;
}

RankRuns try_emulated_ranks(const Mesh& mesh, const RankFunction& body,
                            const std::vector<CallListener*>& listeners) {
  sim::world::EmulatedWorld world(mesh.world_size());
  RankRuns runs = on_threads(mesh.world_size(), [&](int64_t rank) {
    try {
      MeshComm comm(mesh, rank, world.factory(rank), listener_of(listeners, rank));
      body(comm, rank);
      world.rank_ended(rank);
    } catch (...) {
      world.rank_threw(rank, text_of(std::current_exception()));
      throw;
    }
  });
  runs.failure = world.failure();
  return runs;
}

RankRuns try_gloo_ranks(const Mesh& mesh, const RankFunction& body,
                        std::chrono::milliseconds timeout,
                        const std::vector<CallListener*>& listeners) {
  const StorePtr store = make_hash_store();
  return on_threads(mesh.world_size(), [&](int64_t rank) {
    MeshComm comm(mesh, rank, gloo_factory(store, rank, {.timeout = timeout}),
                  listener_of(listeners, rank));
    body(comm, rank);
  });
}

void run_gloo_ranks(const Mesh& mesh, const RankFunction& body) {
  rethrow_first(try_gloo_ranks(mesh, body));
}

void run_emulated_ranks(const Mesh& mesh, const RankFunction& body) {
  rethrow_first(try_emulated_ranks(mesh, body));
}

void rethrow_first(const RankRuns& runs) {
  std::exception_ptr aborted;
  for (size_t rank = 0; rank < runs.errors.size(); ++rank) {
    if (!runs.errors[rank]) continue;
    if (runs.error_code(static_cast<int64_t>(rank)) != "aborted") {
      std::rethrow_exception(runs.errors[rank]);
    }
    aborted = runs.errors[rank];
  }
  if (aborted) std::rethrow_exception(aborted);
  if (runs.failure) {
    throw_failed(runs.failure->message, "", runs.failure->code);
  }
}

}  // namespace shardproof::tests
