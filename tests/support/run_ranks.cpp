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

// The settings of every rank thread, made before it runs an op.
void set_up_rank_thread() {
  at::set_num_threads(1);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

void run_rank(sim::EmulatedWorld& world, const Mesh& mesh, int64_t rank, const RankFunction& body,
              CallListener* listener, std::exception_ptr& error) {
  set_up_rank_thread();
  try {
    MeshComm comm(mesh, rank, world.factory(rank), listener);
    body(comm, rank);
    world.rank_ended(rank);
  } catch (...) {
    error = std::current_exception();
    world.rank_threw(rank, text_of(error));
  }
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

RankRuns try_emulated_ranks(const Mesh& mesh, const RankFunction& body,
                            const std::vector<CallListener*>& listeners) {
  const int64_t size = mesh.world_size();
  sim::EmulatedWorld world(size);
  RankRuns runs;
  runs.errors.resize(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    const auto index = static_cast<size_t>(rank);
    CallListener* listener = listeners.empty() ? nullptr : listeners.at(index);
    threads.emplace_back([&, rank, index, listener] {
      run_rank(world, mesh, rank, body, listener, runs.errors[index]);
    });
  }
  for (auto& thread : threads) thread.join();
  runs.failure = world.failure();
  return runs;
}

RankRuns try_gloo_ranks(const Mesh& mesh, const RankFunction& body,
                        std::chrono::milliseconds timeout,
                        const std::vector<CallListener*>& listeners) {
  const StorePtr store = make_hash_store();
  RankRuns runs;
  runs.errors.resize(static_cast<size_t>(mesh.world_size()));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < runs.errors.size(); ++rank) {
    threads.emplace_back([&, rank] {
      set_up_rank_thread();
      try {
        const auto global = static_cast<int64_t>(rank);
        CallListener* listener = listeners.empty() ? nullptr : listeners.at(rank);
        MeshComm comm(mesh, global, gloo_factory(store, global, {.timeout = timeout}), listener);
        body(comm, global);
      } catch (...) {
        runs.errors[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return runs;
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
    throw Error({.kind = ErrorKind::kFailed,
                 .what = runs.failure->message,
                 .fix = "",
                 .code = runs.failure->code});
  }
}

}  // namespace shardproof::tests
