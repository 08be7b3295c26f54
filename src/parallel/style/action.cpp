#include "parallel/style/action.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"

namespace shardproof {

std::vector<Action> one_at_a_time(int64_t microbatches) {
  std::vector<Action> actions;
  for (int64_t i = 0; i < microbatches; ++i) {
    actions.push_back({Action::Kind::kForward, i});
    actions.push_back({Action::Kind::kBackward, i});
  }
  return actions;
}

void check_actions(const std::vector<Action>& actions, int64_t microbatches, int64_t chunks) {
  const bool split = std::any_of(actions.begin(), actions.end(), [](const Action& action) {
    return action.kind == Action::Kind::kWeights;
  });
  // How far each microbatch is in each chunk: 1 after its forward, 2 after its backward ..
  std::map<std::pair<int64_t, int64_t>, int64_t> done;
  for (const Action& action : actions) {
    int64_t& before = done[{action.microbatch, action.chunk}];
    SHARDPROOF_ASSERT(before++ == static_cast<int64_t>(action.kind),
                      fmt::format("microbatch {} out of order", action.microbatch));
    SHARDPROOF_ASSERT(
        action.microbatch < microbatches && action.chunk < chunks,
        fmt::format("there is no microbatch {} in chunk {}", action.microbatch, action.chunk));
  }
  const int64_t all = split ? 3 : 2;
  const bool complete =
      std::all_of(done.begin(), done.end(), [all](const auto& each) { return each.second == all; });
  SHARDPROOF_ASSERT(
      complete && std::ssize(done) == microbatches * chunks,
      fmt::format("{} of {} microbatches are complete, in {} chunks",
                  std::count_if(done.begin(), done.end(),
                                [all](const auto& each) { return each.second == all; }),
                  microbatches, chunks));
}

}  // namespace shardproof
