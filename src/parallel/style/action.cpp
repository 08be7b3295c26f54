#include "parallel/style/action.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
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

std::vector<Action> forwards_only(int64_t microbatches) {
  std::vector<Action> actions;
  for (int64_t i = 0; i < microbatches; ++i) actions.push_back({Action::Kind::kForward, i});
  return actions;
}

void check_actions(const std::vector<Action>& actions, int64_t microbatches, int64_t chunks,
                   bool backward) {
  // How many actions each microbatch has had in each chunk.
  std::map<std::pair<int64_t, int64_t>, int64_t> done;
  int64_t all = backward ? 2 : 1;
  for (const Action& action : actions) {
    int64_t& before = done[{action.microbatch, action.chunk}];
    SHARDPROOF_ASSERT(before++ == static_cast<int64_t>(action.kind),
                      fmt::format("microbatch {} out of order", action.microbatch));
    SHARDPROOF_ASSERT(
        action.microbatch < microbatches && action.chunk < chunks,
        fmt::format("there is no microbatch {} in chunk {}", action.microbatch, action.chunk));
    all = std::max(all, before);
  }
  const auto complete = std::count_if(done.begin(), done.end(),
                                      [all](const auto& each) { return each.second == all; });
  SHARDPROOF_ASSERT(complete == std::ssize(done) && complete == microbatches * chunks,
                    fmt::format("{} of {} microbatches are complete, in {} chunks", complete,
                                microbatches, chunks));
}

std::vector<Complete> completed_by(const std::vector<Action>& actions) {
  Action::Kind final = Action::Kind::kForward;  // the kind that completes a microbatch
  for (const Action& action : actions) final = std::max(final, action.kind);
  std::vector<Complete> complete(actions.size(), Complete::kNothing);
  std::set<int64_t> ended;  // chunks
  for (size_t i = actions.size(); i-- > 0 && final != Action::Kind::kForward;) {
    if (actions[i].kind != final) continue;
    const bool last = ended.insert(actions[i].chunk).second;
    complete[i] = last ? Complete::kStep : Complete::kMicrobatch;
  }
  return complete;
}

}  // namespace shardproof
