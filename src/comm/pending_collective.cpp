#include "comm/pending_collective.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include <exception>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "base/utf8.h"

namespace shardproof {
namespace {

bool contains_any(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    if (text.find(word) != std::string::npos) return true;
  }
  return false;
}

Error backend_error(const Call& call, const std::string& text) {
  const std::string where = describe(call);
  if (contains_any(text, {"imed out", "imeout"})) {
    return Error({.kind = ErrorKind::kFailed,
                  .what = fmt::format("{} timed out: some member never entered it", where),
                  .fix = "look at the last call of each rank of the group: one left or hangs",
                  .code = "hung"});
  }
  if (contains_any(text,
                   {"onnection closed", "onnection reset", "roken pipe", "onnection refused"})) {
    return Error({.kind = ErrorKind::kFailed,
                  .what = fmt::format("{} lost its connection to a member that has ended", where),
                  .fix = "look at how the other ranks of the group ended",
                  .code = "aborted"});
  }
  return Error({.kind = ErrorKind::kFailed,
                .what = fmt::format("{} failed: {}", where, first_line(text)),
                .fix = "",
                .code = "threw"});
}

}  // namespace

void run_backend_call(const Call& call, const std::function<void()>& run) {
  const at::AutoDispatchBelowADInplaceOrView unseen_by_autograd;
  try {
    run();
  } catch (const Error&) {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (const std::exception& error) {
    throw backend_error(call, error.what());
  }
}

PendingCollective::PendingCollective(std::unique_ptr<State> state) : state_(std::move(state)) {}

PendingCollective::PendingCollective(PendingCollective&&) noexcept = default;

PendingCollective& PendingCollective::operator=(PendingCollective&& other) noexcept = default;

PendingCollective::~PendingCollective() = default;

at::Tensor PendingCollective::wait() {
  SHARDPROOF_ASSERT(state_ != nullptr, "a pending collective is waited for once");
  const std::unique_ptr<State> state = std::move(state_);
  const bool tell = state->listener != nullptr && state->call.asynchronous;
  if (tell) state->listener->before_wait(state->call);
  if (state->work) run_backend_call(state->call, [&] { state->work->wait(); });
  at::Tensor result = state->finish ? state->finish() : at::Tensor();
  if (state->listener != nullptr) state->listener->after_call(state->call);
  return result;
}

}  // namespace shardproof
